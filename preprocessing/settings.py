"""What params.yaml may say under ``preprocessing``: typed, frozen, and refused with its path where it is nonsense.

preprocessing:
  docstrings:                    # text
    length_quantile: {words: 0.95, sentences: 0.95}
    minimum_count: 5
    rows_per_class: null         # or at most so many rows of each class in each split
    word_vectors: null           # or {size: 200, window: 5, epochs: 5}, trained on the training split
  digits:                        # images
    rows_per_class: null
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from storage.checked import Between, Checked

Share = Annotated[float, Between(0, 1, above=True)]
Count = Annotated[int, Between(1)]


@dataclass(frozen=True)
class LengthQuantile(Checked):
    """The share of the training split's sentences, and of its documents, that keep their whole length."""

    words: Share = 0.95
    sentences: Share = 0.95


@dataclass(frozen=True)
class WordVectors(Checked):
    """word2vec: numbers a word, words to each side that are its neighbours at most, passes over the training split."""

    size: Annotated[int, Between(1, 4096)] = 200
    window: Annotated[int, Between(1, 100)] = 5
    epochs: Annotated[int, Between(1, 1000)] = 5


@dataclass(frozen=True)
class TextSettings(Checked):
    """How documents become arrays: where lengths are cut, how rare a word of the vocabulary may be, and whether word
    vectors are trained."""

    length_quantile: LengthQuantile = LengthQuantile()
    minimum_count: Count = 5
    rows_per_class: Count | None = None
    word_vectors: WordVectors | None = None


@dataclass(frozen=True)
class ImageSettings(Checked):
    """How images become arrays: as they are, all or some."""

    rows_per_class: Count | None = None


def settings_for(kind: str, name: str, given: Mapping[str, Any] | None) -> TextSettings | ImageSettings:
    """Return the settings of data set ``name`` of kind ``text`` or ``image``; what is not given has its default."""
    settings = {"text": TextSettings, "image": ImageSettings}[kind]
    return settings.read({} if given is None else given, f"preprocessing.{name}")
