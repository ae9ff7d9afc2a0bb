"""Small prepared data sets for the golden runs, drawn from numpy's PCG64 with fixed seeds.

Shape legend: N rows, S sentences per document, W words per sentence, K classes.
"""

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reread.storage.files import sha256_file, write_json
from reread.storage.prepared import SPLITS

ROWS, TRAINING_ROWS, VALIDATION_ROWS = 112, 80, 16
SENTENCES, WORDS, VOCABULARY, CLASSES, WIDTH = 5, 7, 40, 3, 8


def write_text(directory: Path) -> None:
    """Documents of one class each: half of a document's words come from five words of its class."""
    labels = (np.arange(ROWS) % CLASSES).astype(np.int32)
    _write_documents(directory, labels, "single-label", np.tile(labels[:, None, None], (1, SENTENCES, WORDS)))


def write_several_labels(directory: Path) -> None:
    """Documents with any of the classes: half of a document's words come from words of its classes."""
    generator = np.random.Generator(np.random.PCG64(11))
    labels = generator.integers(0, 2, (ROWS, CLASSES)).astype(np.uint8)
    drawn = generator.integers(0, CLASSES, (ROWS, SENTENCES, WORDS))
    rows = np.arange(ROWS)[:, None, None]
    _write_documents(directory, labels, "multi-label", np.where(labels[rows, drawn], drawn, CLASSES))


def _write_documents(directory: Path, labels: np.ndarray, task: str, classes: np.ndarray) -> None:
    """classes int [N, S, W]: the class that a word may come from, CLASSES for words of no class."""
    generator = np.random.Generator(np.random.PCG64(12))
    sentence_counts = generator.integers(1, SENTENCES + 1, ROWS).astype(np.int32)
    word_counts = generator.integers(1, WORDS + 1, (ROWS, SENTENCES)).astype(np.int32)
    word_counts[np.arange(SENTENCES) >= sentence_counts[:, None]] = 0
    own = 2 + 5 * classes + generator.integers(0, 5, classes.shape)
    common = generator.integers(1, VOCABULARY, classes.shape)
    tokens = np.where(generator.integers(0, 2, classes.shape) == 0, own, common)
    vectors = (generator.integers(-1000, 1001, (VOCABULARY, WIDTH)) / 4096).astype(np.float32)
    vectors[0] = 0
    arrays = {
        "tokens": tokens[np.arange(WORDS) < word_counts[..., None]].astype(np.int32),
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
        "word_vectors": vectors,
        "labels": labels,
    }
    lengths = {"words": {"kept": WORDS}, "sentences": {"kept": SENTENCES}}
    write_prepared(directory, arrays, {"kind": "text", "task": task, "vocabulary_size": VOCABULARY, "lengths": lengths})


def write_images(directory: Path) -> None:
    """Grey images of 8 x 8 pixels."""
    _write_squares(directory, 8, 1)


def write_photographs(directory: Path) -> None:
    """Images of 32 x 32 pixels and three colours."""
    _write_squares(directory, 32, 3)


def _write_squares(directory: Path, size: int, channels: int) -> None:
    """Noise with a bright quarter in class 0 and a bright edge in class 1."""
    generator = np.random.Generator(np.random.PCG64(13))
    labels = (np.arange(ROWS) % CLASSES).astype(np.int32)
    images = generator.integers(0, 120, (ROWS, size, size, channels)).astype(np.uint8)
    images[labels == 0, : size // 2, : size // 2] += 120
    images[labels == 1, :, -(size // 4) :] += 120
    more = {"kind": "image", "task": "single-label", "mean": [0.3] * channels, "deviation": [0.2] * channels}
    write_prepared(directory, {"images": images, "labels": labels}, more)


def write_symbols(directory: Path) -> None:
    """Sequences of two of three symbols to be remembered, a lag of 1 to 6 distractors, and two requests."""
    alphabet, positions, lag = 3, 2, 6
    generator = np.random.Generator(np.random.PCG64(14))
    symbols = generator.integers(0, alphabet, (ROWS, 2 * positions + lag))
    lags = generator.integers(1, lag + 1, (ROWS, 1))
    place = np.arange(2 * positions + lag)
    codes = np.where(place < positions, alphabet + 1 + symbols, 1 + symbols)
    codes = np.where(place >= positions + lags, 2 * alphabet + 1, codes)
    codes[place >= 2 * positions + lags] = 0
    labels = symbols[:, :positions].astype(np.uint8)
    more = {"kind": "symbols", "task": "symbols", "alphabet": alphabet, "positions": positions}
    classes = [f"{position}:{symbol}" for position in range(positions) for symbol in range(alphabet)]
    write_prepared(directory, {"codes": codes.astype(np.uint8), "labels": labels}, more | {"classes": classes})


def write_prepared(
    directory: Path,
    arrays: Mapping[str, np.ndarray],
    more: Mapping[str, Any],
    ends: tuple[int, int, int] = (TRAINING_ROWS, TRAINING_ROWS + VALIDATION_ROWS, ROWS),
) -> Path:
    """Write prepared arrays of which train, validation and test end at ``ends``; ``more`` is added to prepared.json."""
    directory.mkdir(parents=True, exist_ok=True)
    described = {}
    for name, array in arrays.items():
        path = directory / f"{name}.npy"
        np.save(path, array)
        described[name] = {
            "file": path.name,
            "shape": list(array.shape),
            "dtype": str(array.dtype),
            "sha256": sha256_file(path),
        }
    splits = {name: list(pair) for name, pair in zip(SPLITS, itertools.pairwise((0, *ends)), strict=True)}
    description = {"schema": 1, "name": "golden", "classes": ["a", "b", "c"], "splits": splits, "arrays": described}
    write_json(directory / "prepared.json", description | dict(more))
    return directory


WRITERS: dict[str, Callable[[Path], None]] = {
    "text": write_text,
    "several-labels": write_several_labels,
    "images": write_images,
    "photographs": write_photographs,
    "symbols": write_symbols,
}
