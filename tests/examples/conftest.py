"""The parts that tests of the examples share."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def mirror() -> Path:
    """The folder of the published archives."""
    folder = os.environ.get("REREAD_MIRROR")
    if not folder:
        pytest.skip("REREAD_MIRROR names no folder with the published archives")
    return Path(folder)
