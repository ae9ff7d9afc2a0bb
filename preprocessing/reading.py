"""Documents as a network reads them: raw text to the arrays of one batch, and what of each document got in.

What preparing a data set does to a file of documents, for the few that a served model is asked about.
Shape legend: n documents.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from preprocessing.text import keep, number, segment
from preprocessing.vocabulary import UNKNOWN_INDEX


@dataclass(frozen=True)
class Reading:
    """``arrays``: tokens, word_counts and sentence_counts, as prepared data has them.

    words: of each document the sentences that are kept, each the list of its kept words; none of one without words.
    words_read, words_unknown: int64 [n], the kept words, and those of them that the vocabulary does not have.
    cut: bool [n], whether a document was longer than what is kept of it.
    """

    arrays: dict[str, np.ndarray]
    words: list[list[list[str]]]
    words_read: np.ndarray
    words_unknown: np.ndarray
    cut: np.ndarray


def read(texts: Sequence[str], index: Mapping[str, int], kept_sentences: int, kept_words: int) -> Reading:
    """Read raw texts (one or more) with the vocabulary ``index``, cut to ``kept_sentences`` of ``kept_words`` each.

    Of a document only what is kept stays in memory, however long it is.
    """
    words, tokens, word_counts, unknown, cut = [], [], [], [], []
    for text in texts:
        sentences = segment(text)
        kept = keep(sentences, kept_sentences, kept_words)
        numbers, counts = number(kept, index, kept_sentences, kept_words)
        words.append(kept)
        tokens.append(numbers)
        word_counts.append(counts)
        # A document without words stands in the arrays as one unknown word.
        unknown.append(np.count_nonzero(numbers == UNKNOWN_INDEX) if kept else 0)
        cut.append(len(sentences) > len(kept) or any(map(_longer, sentences, kept)))
    arrays = {"tokens": np.concatenate(tokens), "word_counts": np.stack(word_counts)}
    arrays["sentence_counts"] = (arrays["word_counts"] > 0).sum(axis=1, dtype=np.int32)
    return Reading(
        arrays=arrays,
        words=words,
        words_read=np.array([sum(map(len, kept)) for kept in words], np.int64),
        words_unknown=np.array(unknown, np.int64),
        cut=np.array(cut),
    )


def _longer(whole: list[str], kept: list[str]) -> bool:
    return len(whole) > len(kept)
