"""Settings as typed, frozen dataclasses: what is misspelt, of a wrong type or out of bounds is refused on entry.

@dataclass(frozen=True)
class Settings(Checked):
    hidden: Annotated[int, Between(1, 4096)] = 32
    summary: Literal["last", "mean"] = "last"
    rows: Annotated[int, Between(1)] | None = None
    parts: Parts = Parts()                                     # settings within settings
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Self, Union, get_args, get_origin, get_type_hints

from storage.errors import InputError, nearest, refuse_unknown
from storage.registry import registry
from storage.settings import OneOf, Range, to_json

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


@dataclass(frozen=True)
class Between:
    """Bounds of a number, both included unless ``above`` is said: then ``low`` itself is not."""

    low: float
    high: float = math.inf
    above: bool = False

    def hold(self, value: float) -> bool:
        # Not by isfinite, which fails of a whole number that no float can hold.
        return self.low <= value <= self.high and value != math.inf and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high == math.inf:
            return f"be {'above ' if self.above else ''}{self.low:g}{'' if self.above else ' or more'}"
        return f"lie {'above' if self.above else 'between'} {self.low:g} and {'at most ' * self.above}{self.high:g}"


@dataclass(frozen=True)
class Checked:
    """Base of settings: each field is checked against its annotation when the object is made; 1 for a float is 1.0."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            object.__setattr__(self, name, checked(name, getattr(self, name), kind))

    @classmethod
    def read(cls, mapping: Mapping[str, Any], where: str) -> Self:
        """Make the settings from a mapping; InputError names ``where`` it stands and what is wrong."""
        names = [field.name for field in fields(cls)]
        if not isinstance(mapping, Mapping):
            raise InputError(f"{where}: {mapping!r} is not a mapping: give {', '.join(names)}, each with its value")
        refuse_unknown(mapping, names, where)
        kinds = _kinds(cls)
        values = {name: _within(value, kinds[name], f"{where}.{name}") for name, value in mapping.items()}
        try:
            return cls(**values)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None


def _kinds(settings: type) -> dict[str, Any]:
    return get_type_hints(settings, include_extras=True)


def _within(value: Any, kind: Any, where: str) -> Any:
    """Settings within settings are read from their own mapping; any other value stays as it is."""
    kind, optional = _or_none(kind)
    settings = isinstance(kind, type) and issubclass(kind, Checked)
    if not settings or isinstance(value, kind) or (optional and value is None):
        return value
    return kind.read(value, where)


def _or_none(kind: Any) -> tuple[Any, bool]:
    """The annotation without its ``| None``, and whether it had one."""
    # Python makes the one of an Annotated and the other of a class.
    if get_origin(kind) not in (Union, UnionType):
        return kind, False
    (kind,) = (one for one in get_args(kind) if one is not NoneType)
    return kind, True


def checked(name: str, value: Any, kind: Any) -> Any:
    """Return ``value``, called ``name``, as the annotation ``kind`` has it; InputError if it is something else.

    kind: a class, a Literal, a class Annotated with Between, or one of these or None.
    """
    kind, optional = _or_none(kind)
    if optional and value is None:
        return None
    bounds = None
    if get_origin(kind) is Annotated:
        kind, bounds = get_args(kind)
    if isinstance(bounds, OneOf):
        return _member(name, value, bounds.registry)
    if isinstance(bounds, Range):
        bounds = Between(bounds.low, bounds.high, bounds.exclusive)
    if get_origin(kind) is tuple:
        return _tuple(name, value, get_args(kind)[0])
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise InputError(f"{name} is {value!r}: {nearest(str(value), get_args(kind))}")
        return value
    accepted = (int, float) if kind is float else kind
    if not isinstance(value, accepted) or (kind is not bool and isinstance(value, bool)):
        hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if kind is float and isinstance(value, str) else ""
        word = f"{WORDS.get(kind, 'a mapping')}{' or null' if optional else ''}"
        raise InputError(f"{name} is {value!r}: it must be {word}{hint}")
    if bounds and not bounds.hold(value):
        raise InputError(f"{name} is {value}: it must {bounds}")
    return float(value) if kind is float else value


def _member(name: str, value: Any, package: str) -> dict[str, Any]:
    """Return a registry's member with its settings, checked: ``sgd`` means {"name": "sgd"}."""
    value = {"name": value} if isinstance(value, str) else value
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise InputError(f"{name} is {value!r}: give a name, or a mapping such as {{name: NAME, SETTING: VALUE}}")
    settings = registry(package).module(value["name"]).Settings
    kinds = _kinds(settings)
    given = {key: one for key, one in value.items() if key != "name"}
    refuse_unknown(given, kinds, name)
    given = {key: checked(f"{name}.{key}", one, kinds[key]) for key, one in given.items()}
    return {"name": value["name"], **to_json(settings(**given))}


def _tuple(name: str, value: Any, kind: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise InputError(f"{name} is {value!r}: it must be a list")
    return tuple(checked(f"{name}[{place}]", one, kind) for place, one in enumerate(value))
