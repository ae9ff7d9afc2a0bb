"""A part of a prepared text, in memory: of some rows, cut at lengths, or without some words.

What comes out is a ``Prepared`` like any other, that networks are trained on and read. Its description is that of the
whole, but for the splits where rows are chosen; nothing is written.

Shape legend: N rows, M words of all rows, S sentences a document has at most.
"""

import dataclasses

import numpy as np

from storage.prepared import SPLITS, Prepared

# Beside the words: what else a prepared text may have belongs to all rows together.
OF_EACH_ROW = ("sentence_counts", "labels", "source_rows")


def of_rows(prepared: Prepared, rows: np.ndarray) -> Prepared:
    """The documents of ``rows`` (int [n], in the order of their splits, each once), renumbered from 0."""
    counts = prepared.arrays["word_counts"][rows]
    first, sizes = prepared.first_words[rows], counts.sum(axis=1, dtype=np.int64)
    tokens = prepared.arrays["tokens"][np.repeat(first, sizes) + counted_up(sizes)]
    chosen = {name: array[rows] for name, array in prepared.arrays.items() if name in OF_EACH_ROW}
    arrays = {**prepared.arrays, **chosen, "tokens": tokens, "word_counts": counts}
    ends = [int(np.searchsorted(rows, prepared.description["splits"][split][1])) for split in SPLITS]
    splits = {split: [start, end] for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False)}
    return Prepared(prepared.directory, prepared.description | {"splits": splits}, arrays)


def cut(prepared: Prepared, words: int, sentences: int) -> Prepared:
    """The first ``words`` words of the first ``sentences`` sentences of every document."""
    word_counts = np.array(prepared.arrays["word_counts"])
    kept = np.minimum(word_counts, words)
    kept[:, sentences:] = 0
    lengths, kept = word_counts.reshape(-1), kept.reshape(-1)
    return with_counts(prepared, np.repeat(np.tile([True, False], len(kept)), alternating(kept, lengths - kept)), kept)


def without_words(prepared: Prepared, removed: np.ndarray) -> Prepared:
    """Every document without its words of ``removed``, bool [M]; a sentence that loses all of its words is gone.

    ValueError where a document would have no word left.
    """
    word_counts = prepared.arrays["word_counts"]
    sentence = np.repeat(np.arange(word_counts.size), word_counts.reshape(-1))
    return with_counts(prepared, ~removed, np.bincount(sentence[~removed], minlength=word_counts.size))


def with_counts(prepared: Prepared, kept: np.ndarray, counts: np.ndarray) -> Prepared:
    """The words of ``kept``, bool [M], of which sentence s of row n has ``counts[n S + s]``."""
    counts = counts.reshape(prepared.arrays["word_counts"].shape).astype(np.int32)
    sentence_counts = np.count_nonzero(counts, axis=1).astype(np.int32)
    if not sentence_counts.all():
        raise ValueError(f"row {int(sentence_counts.argmin())} has no word left")
    # Sentences that are left move up to where those stood that are gone.
    word_counts = np.zeros((len(counts), int(sentence_counts.max())), np.int32)
    word_counts[np.arange(word_counts.shape[1]) < sentence_counts[:, None]] = counts[counts > 0]
    own = {
        "tokens": np.ascontiguousarray(prepared.arrays["tokens"][kept]),
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
    }
    return dataclasses.replace(prepared, arrays={**prepared.arrays, **own})


def counted_up(lengths: np.ndarray) -> np.ndarray:
    """0, 1, 2, ... to each length, one after the other: [2, 3] gives [0, 1, 0, 1, 2]."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def alternating(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """a, b, a, b, ... of two arrays of one length."""
    return np.stack((first, second), axis=1).reshape(-1)
