"""Settings as typed, frozen dataclasses: what is misspelt, of a wrong type or out of bounds is refused on entry.

@dataclass(frozen=True)
class Settings(Checked):
    hidden: Annotated[int, Between(1, 4096)] = 32
    summary: Literal["last", "mean"] = "last"
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, Self, get_args, get_origin, get_type_hints

from storage.errors import InputError, nearest, refuse_unknown


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included."""

    low: float
    high: float


@dataclass(frozen=True)
class Checked:
    """Base of settings: each field is checked against its annotation when the object is made."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self), include_extras=True).items():
            _check(name, getattr(self, name), kind)

    @classmethod
    def read(cls, mapping: Mapping[str, Any], where: str) -> Self:
        """Make the settings from a mapping; InputError names ``where`` it stands and what is wrong."""
        refuse_unknown(mapping, [field.name for field in fields(cls)], where)
        try:
            return cls(**mapping)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _check(name: str, value: Any, kind: Any) -> None:
    """Raise InputError unless ``value`` is of the annotated ``kind``: a class, a Literal, or Annotated with Between."""
    bounds = None
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{name} is {value!r}: {nearest(str(value), get_args(kind))}")
        return
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        word = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]
        hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if kind is float and isinstance(value, str) else ""
        raise InputError(f"{name} is {value!r}: it must be {word}{hint}")
    if bounds and not (math.isfinite(value) and bounds.low <= value <= bounds.high):
        raise InputError(f"{name} is {value}: it must lie between {bounds.low:g} and {bounds.high:g}")
