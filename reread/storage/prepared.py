"""Prepared arrays, which preprocessing writes into prepared/KEY/ and training and evaluation read.

Shape legend: N rows, M words of all rows, S sentences per document has at most, V words of the vocabulary,
D numbers of a word vector, H x W x C an image, K classes.

    text    tokens int32 [M], the kept words of every sentence of every document, one after the other (1 unknown; 0,
            padding, is never there), word_counts int32 [N, S] (0 for a sentence that the document has not),
            sentence_counts int32 [N] (at least 1), and where word vectors were trained word_vectors float32 [V, D] (0
            for padding and for a word that no kept sentence of the training split has)
    image   images uint8 [N, H, W, C], and where classes were located boxes float64 [B, 6]: row, class, left, top, width
            and height, the last four as shares of the image
    all     labels int32 [N] (single-label) or uint8 [N, K] (multi-label), raw_indices int64 [N] (each row's number in
            the data's own files), and where groups are known groups int64 [N] (rows of one patient, film or source file
            share a number, and no group is in two splits)

Rows are in split order: ``splits`` gives each split's first row and the row after its last. prepared.json has the
longest sentence and document: ``lengths.words.kept`` and ``lengths.sentences.kept`` (which is S).
"""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from reread.storage.arrays import Int64Array
from reread.storage.digests import current_sha256, require_intact
from reread.storage.errors import InputError
from reread.storage.files import below, read_object
from reread.storage.ledger import refuse_unrecorded

DESCRIPTION = "prepared.json"
SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Prepared:
    """The opened arrays of one prepared data set, memory-mapped and checked against their sha256."""

    directory: Path
    description: dict[str, Any]
    arrays: dict[str, np.ndarray] = field(repr=False)

    @property
    def kind(self) -> str:
        """The kind of data: ``text``, ``image`` or another file of reread/kinds/."""
        return self.description["kind"]

    @property
    def task(self) -> str:
        """``single-label`` or ``multi-label``."""
        return self.description["task"]

    @property
    def classes(self) -> list[str]:
        return self.description["classes"]

    @property
    def labels(self) -> np.ndarray:
        return self.arrays["labels"]

    @cached_property
    def first_words(self) -> Int64Array:
        """Of text, int64 [N + 1]: row n's words are tokens[first_words[n] : first_words[n + 1]]."""
        return np.append(0, np.cumsum(self.arrays["word_counts"].sum(axis=1, dtype=np.int64)))

    @property
    def groups(self) -> Int64Array | None:
        """int64 [N], the number of each row's group; None where no groups are known."""
        return self.arrays.get("groups")

    def rows(self, split: str) -> Int64Array:
        """Return the row numbers of a split, int64. InputError for test rows outside of ``open_test_split``."""
        refuse_unrecorded(self.description, split)
        start, stop = self.description["splits"][split]
        return np.arange(start, stop)


def open_prepared(directory: Path, verify: bool = True) -> Prepared:
    """Open prepared/KEY/.

    InputError when a file is missing, or its shape, dtype or (with ``verify``) sha256 is not that of prepared.json.
    """
    directory = Path(directory)
    again = f"remove {directory} and run again, it will be prepared again"
    description = read_object(
        require_intact(directory / DESCRIPTION, again), "name", "kind", "task", "classes", "splits", "arrays"
    )
    arrays = {}
    for name, about in description["arrays"].items():
        path = below(directory, about["file"], f"{directory / DESCRIPTION} is damaged, {again}", links=True)
        if not path.is_file():
            raise InputError(f"{path} is missing: {again}")
        if verify and current_sha256(path) != about["sha256"]:
            raise InputError(f"{path} does not match its sha256: {again}")
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (ValueError, EOFError) as error:
            raise InputError(f"{path} is no array ({error}): {again}") from None
        if (list(array.shape), str(array.dtype)) != (about["shape"], about["dtype"]):
            raise InputError(
                f"{path} is {array.dtype} {list(array.shape)}, {DESCRIPTION} says {about['dtype']} {about['shape']}: "
                f"{again}"
            )
        arrays[name] = array
    return Prepared(directory, description, arrays)
