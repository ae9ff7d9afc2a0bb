"""Subsets of a prepared text, in memory: some rows, truncated documents, or documents without some words.

Each result is a ``Prepared`` like any other. Its description is that of the whole data set, except for the splits after
``select_rows``. Nothing is written.

Shape legend: N rows, M words of all rows, S sentences of the longest document.
"""

import dataclasses

import numpy as np

from reread.storage.arrays import BoolArray, Int64Array
from reread.storage.prepared import SPLITS, Prepared

# Arrays with an entry for each row, beside the words. Other arrays belong to the whole data set.
ROW_ARRAYS = ("sentence_counts", "labels", "raw_indices")


def select_rows(prepared: Prepared, rows: Int64Array) -> Prepared:
    """Select the documents of ``rows`` (int [n], in the order of their splits, each once), renumbered from 0."""
    counts = prepared.arrays["word_counts"][rows]
    first, sizes = prepared.first_words[rows], counts.sum(axis=1, dtype=np.int64)
    tokens = prepared.arrays["tokens"][np.repeat(first, sizes) + segment_arange(sizes)]
    selected = {name: array[rows] for name, array in prepared.arrays.items() if name in ROW_ARRAYS}
    arrays = {**prepared.arrays, **selected, "tokens": tokens, "word_counts": counts}
    ends = [int(np.searchsorted(rows, prepared.description["splits"][split][1])) for split in SPLITS]
    splits = {split: [start, end] for split, start, end in zip(SPLITS, [0, *ends], ends, strict=False)}
    return Prepared(prepared.directory, prepared.description | {"splits": splits}, arrays)


def truncate(prepared: Prepared, words: int, sentences: int) -> Prepared:
    """Truncate every document to the first ``words`` words of its first ``sentences`` sentences."""
    word_counts = np.array(prepared.arrays["word_counts"])
    kept = np.minimum(word_counts, words)
    kept[:, sentences:] = 0
    lengths, kept = word_counts.reshape(-1), kept.reshape(-1)
    mask = np.repeat(np.tile([True, False], len(kept)), interleave(kept, lengths - kept))
    return _keep_tokens(prepared, mask, kept)


def delete_tokens(prepared: Prepared, deleted: BoolArray) -> Prepared:
    """Delete the words of the mask ``deleted``, bool [M], and each sentence that loses all of its words.

    ValueError where a document would have no word left.
    """
    word_counts = prepared.arrays["word_counts"]
    sentence = np.repeat(np.arange(word_counts.size), word_counts.reshape(-1))
    return _keep_tokens(prepared, ~deleted, np.bincount(sentence[~deleted], minlength=word_counts.size))


def segment_arange(lengths: Int64Array) -> Int64Array:
    """Count from 0 within each segment: lengths [2, 3] give [0, 1, 0, 1, 2]."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def interleave(first: Int64Array, second: Int64Array) -> Int64Array:
    """Alternate the items of two arrays of the same length: a0, b0, a1, b1, ..."""
    return np.stack((first, second), axis=1).reshape(-1)


def _keep_tokens(prepared: Prepared, mask: BoolArray, counts: Int64Array) -> Prepared:
    """Keep the words of ``mask``, bool [M], of which sentence s of row n has ``counts[n S + s]``."""
    counts = counts.reshape(prepared.arrays["word_counts"].shape).astype(np.int32)
    sentence_counts = np.count_nonzero(counts, axis=1).astype(np.int32)
    if not sentence_counts.all():
        raise ValueError(f"row {int(sentence_counts.argmin())} has no word left")
    # The remaining sentences move up into the columns of deleted ones.
    word_counts = np.zeros((len(counts), int(sentence_counts.max())), np.int32)
    word_counts[np.arange(word_counts.shape[1]) < sentence_counts[:, None]] = counts[counts > 0]
    replaced = {
        "tokens": np.ascontiguousarray(prepared.arrays["tokens"][mask]),
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
    }
    return dataclasses.replace(prepared, arrays={**prepared.arrays, **replaced})
