"""The rows of a data set that are prepared, by split and within a split in the order of the data's files."""

import contextlib
import hashlib
import json
import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from reread import goals
from reread.preprocessing.manifest import check_census
from reread.preprocessing.raw_text import DOCUMENTS, TextDataSet
from reread.storage.errors import InputError
from reread.storage.prepared import SPLITS


def choose_rows(
    name: str, split: np.ndarray, labels: list[tuple[int, ...]], ids: Sequence[str], rows_per_class: int | None
) -> tuple[np.ndarray, dict[str, list[int]]]:
    """Choose all rows in split order or, with ``rows_per_class``, at most that many of each class in each split.

    Return each one's number in the data's files, int64 [N], and of each split its first row and the one after.

    name     the data set's, for errors
    split    uint8 [M]: 0 train, 1 validation, 2 test
    labels   the class numbers of each row; rows without any count as one more class
    ids      a name for each row: rows are chosen in the order of its hash, which is random and repeatable

    InputError where all rows of the training split have the same labels.
    """
    refuse_one_class(name, {tuple(labels[row]) for row in np.flatnonzero(split == 0)})
    source: list[int] = []
    splits = {}
    for number, split_name in enumerate(SPLITS):
        rows = np.flatnonzero(split == number).tolist()
        if rows_per_class is not None:
            ranked = sorted(rows, key=lambda row: rank(ids[row]))
            rows = first_of_each_class(((row, labels[row]) for row in ranked), rows_per_class)
        splits[split_name] = [len(source), len(source) + len(rows)]
        source += rows
    return np.array(source, np.int64), splits


def refuse_one_class(name: str, training_labels: Collection[tuple[int, ...]]) -> None:
    """Raise InputError where all rows of the training split have the same labels."""
    if len(training_labels) < 2:
        raise InputError(
            f"data set '{name}': its training split has rows of only one class: nothing can be learned, "
            "give it rows of two or more"
        )


def rank(identity: str) -> bytes:
    """Return the hash of an id by which rows are ordered: random, and repeatable."""
    return hashlib.sha256(identity.encode("utf-8", "backslashreplace")).digest()


def first_of_each_class(ranked: Iterable[tuple[int, Sequence[int]]], rows_per_class: int) -> list[int]:
    """Take rows in the order given while none of their classes has ``rows_per_class`` yet; return them sorted."""
    kept: list[int]
    counts: Counter[int | None]
    kept, counts = [], Counter()
    for row, labels in ranked:
        classes = labels or (None,)
        if all(counts[label] < rows_per_class for label in classes):
            counts.update(classes)
            kept.append(row)
    return sorted(kept)


class Census:
    """The classes that occur in a corpus, and up to two label sets of its training split: enough to check it."""

    def __init__(self) -> None:
        self.rows = 0
        self.classes: set[int] = set()
        self.training_labels: set[tuple[int, ...]] = set()  # two at most

    def add(self, rows: int, classes: Iterable[int], training_labels: Iterable[tuple[int, ...]]) -> None:
        """Add some rows, the classes that occur in them, and the label sets of those in the training split."""
        self.rows += rows
        self.classes.update(classes)
        self.training_labels = set(sorted({*self.training_labels, *training_labels})[:2])

    def check(self, data: TextDataSet) -> None:
        """Raise InputError where nothing can be learned from the rows."""
        classes = len(data.entry.classes) if data.entry.task == "multi-label" else len(self.classes)
        check_census(self.rows, classes, data.entry.splits, data.directory / DOCUMENTS)
        if goals.beyond_labels(data.entry.task):
            return
        refuse_one_class(data.name, self.training_labels)


def choose_documents(data: TextDataSet, rows_per_class: int, directory: Path) -> np.ndarray:
    """Return int64 [M], the rows of a text data set that ``choose_rows`` would keep, for a corpus of any size.

    A database in ``directory`` sorts the ids, so that memory holds only the rows that are kept. InputError for a line
    that is not a document, and for a corpus from which nothing can be learned.
    """
    census = Census()

    def candidates() -> Iterator[tuple[int, bytes, int, str]]:
        for row, document in enumerate(data.documents()):
            census.add(1, document.labels, [document.labels] if document.split == "train" else ())
            yield SPLITS.index(document.split), rank(document.id), row, json.dumps(document.labels)

    with contextlib.closing(sqlite3.connect(directory / "rows.sqlite")) as database:
        database.execute("PRAGMA journal_mode = OFF")
        database.execute("PRAGMA synchronous = OFF")
        database.execute("CREATE TABLE documents (split INTEGER, rank BLOB, row INTEGER, labels TEXT)")
        database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?)", candidates())
        census.check(data)
        kept: list[int] = []
        for split in range(len(SPLITS)):
            ranked = database.execute("SELECT row, labels FROM documents WHERE split = ? ORDER BY rank, row", (split,))
            kept += first_of_each_class(((row, json.loads(labels)) for row, labels in ranked), rows_per_class)
    return np.array(kept, np.int64)
