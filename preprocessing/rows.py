"""Which rows of a data set are prepared, and in which order: by split, and in a split as in the data's files."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import InputError
from storage.prepared import SPLITS


@dataclass(frozen=True)
class Rows:
    """``source`` int64 [N]: each prepared row's number in the data's files; ``splits``: first row and the one after."""

    source: np.ndarray
    splits: dict[str, list[int]]

    def split_of(self, row: int) -> str:
        return next(split for split, (start, stop) in self.splits.items() if start <= row < stop)


def choose_rows(
    name: str, split: np.ndarray, labels: Sequence[Sequence[int]], ids: Sequence[str], rows_per_class: int | None
) -> Rows:
    """Return all rows in split order or, with ``rows_per_class``, at most so many of each class in each split.

    name     the data set's, for errors
    split    uint8 [M]: 0 train, 1 validation, 2 test
    labels   the class numbers of each row; rows without any count as one more class
    ids      a name of each row: those first by its hash are kept, a random choice that anyone can repeat

    InputError where all rows of the training split have the same labels.
    """
    if len({tuple(labels[row]) for row in np.flatnonzero(split == 0)}) < 2:
        raise InputError(
            f"data set '{name}': its training split has rows of one class alone: nothing can be learned, "
            "give it rows of two or more"
        )
    source: list[int] = []
    splits = {}
    for number, one in enumerate(SPLITS):
        rows = np.flatnonzero(split == number).tolist()
        if rows_per_class is not None:
            rows = _first_of_each_class(rows, labels, ids, rows_per_class)
        splits[one] = [len(source), len(source) + len(rows)]
        source += rows
    return Rows(np.array(source, np.int64), splits)


def _first_of_each_class(
    rows: list[int], labels: Sequence[Sequence[int]], ids: Sequence[str], rows_per_class: int
) -> list[int]:
    kept, counts = [], Counter()
    for row in sorted(rows, key=lambda row: hashlib.sha256(ids[row].encode("utf-8", "backslashreplace")).digest()):
        classes = labels[row] or (None,)
        if all(counts[one] < rows_per_class for one in classes):
            counts.update(classes)
            kept.append(row)
    return sorted(kept)
