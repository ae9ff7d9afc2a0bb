"""Test rows for tests of other things than the ledger: every test split is open, and no entry is written."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest

from reread.storage import ledger


class _All(Counter):
    def __getitem__(self, key) -> int:
        return 1


@contextmanager
def every_test_split() -> Iterator[None]:
    with mock.patch.object(ledger, "_open", _All()):
        yield


@pytest.fixture(autouse=True)
def rows_of_test() -> Iterator[None]:
    """Test rows without an entry in the ledger, where a conftest or a module of tests imports this fixture."""
    with every_test_split():
        yield
