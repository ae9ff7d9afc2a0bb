"""Parts of a prepared text: documents, lengths and words, against a case by hand."""

from pathlib import Path

import numpy as np
import pytest

from reread.batches.subsets import delete_tokens, select_rows, truncate
from reread.storage.prepared import Prepared
from tests.reads import rows_of_test

__all__ = ["rows_of_test"]
# Three documents: [[1, 2, 3], [4]], [[5, 6]], [[7], [8, 9, 10, 11], [12, 13]].
SPLITS = {"train": [0, 1], "validation": [1, 2], "test": [2, 3]}


@pytest.fixture
def text() -> Prepared:
    arrays = {
        "tokens": np.arange(1, 14, dtype=np.int32),
        "word_counts": np.array([[3, 1, 0], [2, 0, 0], [1, 4, 2]], np.int32),
        "sentence_counts": np.array([2, 1, 3], np.int32),
        "labels": np.array([0, 1, 0], np.int32),
        # Of the vocabulary, as long as there are rows by chance.
        "word_vectors": np.arange(3, dtype=np.float32)[:, None],
    }
    return Prepared(Path("nowhere"), {"kind": "text", "splits": SPLITS}, arrays)


def documents(prepared: Prepared) -> list[list[list[int]]]:
    """The sentences of every document; what the counts say must be there, and nothing else."""
    words, texts = iter(prepared.arrays["tokens"].tolist()), []
    for counts, sentences in zip(prepared.arrays["word_counts"], prepared.arrays["sentence_counts"], strict=True):
        assert (counts[:sentences] > 0).all() and not counts[sentences:].any()
        texts.append([[next(words) for _ in range(count)] for count in counts[:sentences]])
    assert list(words) == []
    assert all(prepared.arrays[name].dtype == np.int32 for name in ("tokens", "word_counts", "sentence_counts"))
    assert prepared.arrays["word_vectors"].tolist() == [[0], [1], [2]]
    return texts


def test_the_case_by_hand_is_what_it_says(text):
    assert documents(text) == [[[1, 2, 3], [4]], [[5, 6]], [[7], [8, 9, 10, 11], [12, 13]]]


def test_texts_are_cut_at_words_of_a_sentence_and_sentences_of_a_document(text):
    cut = truncate(text, words=2, sentences=2)
    assert documents(cut) == [[[1, 2], [4]], [[5, 6]], [[7], [8, 9]]]
    assert cut.arrays["word_counts"].shape == (3, 2)
    assert documents(truncate(text, words=4, sentences=3)) == documents(text)
    assert documents(truncate(text, words=1, sentences=1)) == [[[1]], [[5]], [[7]]]


def test_words_are_removed_and_a_sentence_without_words_is_gone(text):
    removed = np.isin(text.arrays["tokens"], [2, 6, 7, 9, 11])
    kept = delete_tokens(text, removed)
    assert documents(kept) == [[[1, 3], [4]], [[5]], [[8, 10], [12, 13]]]
    assert kept.first_words.tolist() == [0, 3, 4, 8]
    last = delete_tokens(text, np.isin(text.arrays["tokens"], [12, 13]))
    assert documents(last) == [[[1, 2, 3], [4]], [[5, 6]], [[7], [8, 9, 10, 11]]]
    with pytest.raises(ValueError, match="row 1 has no word left"):
        delete_tokens(text, np.isin(text.arrays["tokens"], [5, 6]))


def test_rows_are_chosen_with_their_words_labels_and_splits(text):
    chosen = select_rows(text, np.array([0, 2]))
    assert documents(chosen) == [[[1, 2, 3], [4]], [[7], [8, 9, 10, 11], [12, 13]]]
    assert chosen.description["splits"] == {"train": [0, 1], "validation": [1, 1], "test": [1, 2]}
    assert chosen.labels.tolist() == [0, 0] and chosen.rows("test").tolist() == [1]
    assert text.description["splits"] == SPLITS
