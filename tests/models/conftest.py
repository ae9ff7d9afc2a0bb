"""Small prepared data sets in memory: documents of uneven length, images, and sequences of symbols."""

from pathlib import Path

import numpy as np
import pytest

from reread.storage.prepared import Prepared


@pytest.fixture(scope="session")
def text() -> Prepared:
    """24 documents of 1 to 5 sentences of 1 to 7 words, 3 classes, vocabulary of 40."""
    generator = np.random.default_rng(0)
    documents, sentences, words = 24, 5, 7
    sentence_counts = generator.integers(1, sentences + 1, documents).astype(np.int32)
    word_counts = generator.integers(1, words + 1, (documents, sentences)).astype(np.int32)
    word_counts[np.arange(sentences) >= sentence_counts[:, None]] = 0
    tokens = generator.integers(1, 40, (documents, sentences, words)).astype(np.int32)
    labels = generator.integers(0, 3, documents).astype(np.int32)
    arrays = {
        "tokens": tokens[np.arange(words) < word_counts[..., None]],
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
        "labels": labels,
    }
    return prepared("text", arrays, 3, {"vocabulary_size": 40, "lengths": {"words": {"kept": words}}})


@pytest.fixture(scope="session")
def images() -> Prepared:
    """16 images of 8 x 8 x 1, 4 classes."""
    return squares(8)


@pytest.fixture(scope="session")
def photographs() -> Prepared:
    """The same of 32 x 32 pixels, the fewest that networks for photographs take."""
    return squares(32)


@pytest.fixture(scope="session")
def symbols() -> Prepared:
    """16 sequences of one symbol of three to be remembered, two distractors and a request, each in a class."""
    generator = np.random.default_rng(2)
    drawn = generator.integers(0, 3, (16, 3))
    codes = np.concatenate([drawn[:, :1] + 4, drawn[:, 1:] + 1, np.full((16, 1), 7)], axis=1)
    arrays = {"codes": codes.astype(np.uint8), "labels": drawn[:, 0].astype(np.int32)}
    return prepared("symbols", arrays, 3, {"alphabet": 3, "positions": 1})


def squares(size: int) -> Prepared:
    generator = np.random.default_rng(1)
    arrays = {
        "images": generator.integers(0, 256, (16, size, size, 1)).astype(np.uint8),
        "labels": generator.integers(0, 4, 16).astype(np.int32),
    }
    return prepared("image", arrays, 4, {"mean": [0.5], "deviation": [0.3]})


def prepared(kind: str, arrays: dict[str, np.ndarray], classes: int, more: dict) -> Prepared:
    rows = len(arrays["labels"])
    description = {
        "name": "small",
        "kind": kind,
        "task": "single-label",
        "classes": [f"class {index}" for index in range(classes)],
        "splits": {"train": [0, rows // 2], "validation": [rows // 2, rows], "test": [rows, rows]},
        "arrays": {name: {"shape": list(array.shape)} for name, array in arrays.items()},
    }
    return Prepared(Path("nowhere"), description | more, arrays)
