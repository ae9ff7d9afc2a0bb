"""In which state of the library a test begins."""

import pytest

from cuda_ext import library


@pytest.fixture(autouse=True)
def fresh(monkeypatch, request):
    """As a process does: nothing warned of, and not strict; but a GPU's tests are, so that no reference stands in."""
    monkeypatch.setattr(library, "_warned", set())
    monkeypatch.setattr(library, "_strict", request.node.get_closest_marker("gpu") is not None)
