"""What params.yaml may say under ``preprocessing``: typed, frozen, and refused with its path where it is nonsense.

preprocessing:
  docstrings:                    # text
    length_quantile: {words: 0.95, sentences: 0.95}
    minimum_count: 5
    rows_per_class: null         # or at most so many rows of each class in each split
  digits:                        # images
    rows_per_class: null
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from storage.errors import InputError, refuse_unknown


@dataclass(frozen=True)
class LengthQuantile:
    """The share of the training split's sentences, and of its documents, that keep their whole length, in (0, 1]."""

    words: float = 0.95
    sentences: float = 0.95

    @classmethod
    def from_mapping(cls, given: Any, where: str) -> "LengthQuantile":
        values = _known(cls, given, where)
        return cls(**{level: share(value, f"{where}.{level}") for level, value in values.items()})


@dataclass(frozen=True)
class TextSettings:
    """How documents become arrays: where lengths are cut, and how rare a word of the vocabulary may be."""

    length_quantile: LengthQuantile = field(default_factory=LengthQuantile)
    minimum_count: int = 5
    rows_per_class: int | None = None

    @classmethod
    def from_mapping(cls, given: Any, where: str) -> "TextSettings":
        values = _known(cls, given, where)
        if "length_quantile" in values:
            values["length_quantile"] = LengthQuantile.from_mapping(
                values["length_quantile"], f"{where}.length_quantile"
            )
        _positive(values, "minimum_count", where)
        _positive(values, "rows_per_class", where, optional=True)
        return cls(**values)


@dataclass(frozen=True)
class ImageSettings:
    """How images become arrays: as they are, all or some."""

    rows_per_class: int | None = None

    @classmethod
    def from_mapping(cls, given: Any, where: str) -> "ImageSettings":
        values = _known(cls, given, where)
        _positive(values, "rows_per_class", where, optional=True)
        return cls(**values)


def settings_for(kind: str, name: str, given: Mapping[str, Any] | None) -> TextSettings | ImageSettings:
    """Return the settings of data set ``name`` of kind ``text`` or ``image``; what is not given has its default."""
    settings = {"text": TextSettings, "image": ImageSettings}[kind]
    return settings.from_mapping({} if given is None else given, f"preprocessing.{name}")


def share(value: Any, where: str) -> float:
    """Return ``value`` as a float, or raise InputError unless it is a number in (0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise InputError(f"{where}: {value} is outside (0, 1]: give the share that keeps its whole length, as 0.95")
    return float(value)


def _known(settings: type, given: Any, where: str) -> dict[str, Any]:
    names = [one.name for one in fields(settings)]
    if not isinstance(given, Mapping):
        raise InputError(f"{where}: {given!r} is not a mapping: give {', '.join(names)}, each with its value")
    refuse_unknown(given, names, where)
    return dict(given)


def _positive(values: Mapping[str, Any], name: str, where: str, optional: bool = False) -> None:
    value = values.get(name, 1)
    if (value is None and optional) or (isinstance(value, int) and not isinstance(value, bool) and value >= 1):
        return
    raise InputError(f"{where}.{name}: {value} is not a whole number of 1 or more{' (or null)' if optional else ''}")
