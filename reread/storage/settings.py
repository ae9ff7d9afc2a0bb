"""The base of settings: plain frozen dataclasses whose annotations define the allowed values.

@dataclass(frozen=True)
class Settings:
    hidden_size: Annotated[int, Range(1, 4096)] = 32
    pooling: Literal["last", "mean"] = "last"
    rows: Annotated[int, Range(1)] | None = None
    lengths: Lengths = Lengths()                                              # settings within settings
    optimizer: Annotated[Tagged, OneOf("reread.training.optimisers")] = tagged("adamw")
    augmentation: tuple[Annotated[Tagged, OneOf("reread.batches.augmentations")], ...] = ()

reread.planning.validation checks what people write against the annotations (by pydantic) and fills in defaults. A
machine that trains has no validation library: it reads resolved JSON, which ``from_json`` checks and turns back into
the dataclass.

A field at its default enters no run's key (``without_defaults``), so that a new field changes no key. Therefore a
default never changes: tests/golden holds them all. A field with the metadata {"key": False} enters no key at all: where
a file is, beside its digest.
"""

import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from reread.storage.errors import InputError

# {"name": MEMBER, SETTING: VALUE, ...}: a member of a registry with its settings.
Tagged = Mapping[str, Any]


@dataclass(frozen=True)
class Range:
    """Bounds of a number, both included; with ``exclusive``, ``low`` is not."""

    low: float
    high: float = math.inf
    exclusive: bool = False

    def holds(self, value: float) -> bool:
        return (self.low < value if self.exclusive else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        end = "" if self.high == math.inf else f" to {self.high:g}"
        return f" {'above' if self.exclusive else 'from'} {self.low:g}{end}"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        schema = {**handler(source), "gt" if self.exclusive else "ge": self.low}
        if self.high != math.inf:
            schema["le"] = self.high
        if schema["type"] == "float":
            schema["allow_inf_nan"] = False
        return schema


@dataclass(frozen=True)
class OneOf:
    """Marks a ``Tagged`` field: a member of the registry that the package ``registry`` defines as REGISTRY."""

    registry: str

    def holds(self, value: Tagged) -> bool:
        """Return whether the value names a member; the registry knows which there are."""
        return isinstance(value.get("name"), str)


def tagged(name: str, **settings: Any) -> Any:
    """Return the default of a ``Tagged`` field: the member ``name`` with ``settings``."""
    return field(default_factory=lambda: {"name": name, **settings})


def from_json(cls: type, values: Mapping[str, Any]) -> Any:
    """Build the settings ``cls`` from resolved JSON; what is missing has its default.

    InputError for an unknown name, and for a value that its annotation does not allow.
    """
    hints = get_type_hints(cls, include_extras=True)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise InputError(f"unknown setting '{unknown[0]}' for {cls.__module__}: choose from {', '.join(hints)}")
    for name, value in values.items():
        if not allows(hints[name], value):
            raise InputError(f"{name} of {cls.__module__} is {value!r}: give {in_words(hints[name])}")
    return cls(**{name: _from_json(hints[name], value) for name, value in values.items()})


def allows(kind: Any, value: Any) -> bool:
    """Return whether an annotation allows a value of resolved JSON; settings within settings check their own."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return allows(parts[0], value) and all(marker.holds(value) for marker in parts[1:])
    if origin in (Union, UnionType):
        return any(allows(part, value) for part in parts)
    if origin is Literal:
        return any(type(value) is type(choice) and value == choice for choice in parts)
    if origin in (tuple, list):
        return isinstance(value, list | tuple) and all(allows(parts[0], element) for element in value)
    if kind is float:
        return type(value) in (int, float) and abs(value) <= sys.float_info.max
    if kind in (int, bool, str):
        return type(value) is kind
    if is_dataclass(kind) or kind == Tagged:
        return isinstance(value, Mapping)
    return value is None or kind is not type(None)


def in_words(kind: Any) -> str:
    """Return in words what an annotation allows."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return in_words(parts[0]) + "".join(str(marker) for marker in parts[1:] if isinstance(marker, Range))
    if origin in (Union, UnionType):
        return " or ".join(map(in_words, parts))
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}"
    if origin in (tuple, list):
        return f"a list, each {in_words(parts[0])}"
    if is_dataclass(kind):
        return "an object of settings"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text", type(None): "null"}
    return "an object with a 'name'" if kind == Tagged else words.get(kind, str(kind))


def _from_json(kind: Any, value: Any) -> Any:
    nested = [part for part in alternatives(kind) if isinstance(part, type) and is_dataclass(part)]
    if nested and isinstance(value, Mapping):
        return from_json(nested[0], value)
    return tuple(value) if isinstance(value, list) else value


def to_json(settings: Any) -> dict[str, Any]:
    """Return every setting as JSON values, the inverse of ``from_json``."""
    return {setting.name: _to_json(getattr(settings, setting.name)) for setting in fields(settings)}


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        return to_json(value)
    if isinstance(value, Mapping):
        return {name: _to_json(part) for name, part in value.items()}
    return [_to_json(part) for part in value] if isinstance(value, tuple | list) else value


def without_defaults(settings: Any) -> dict[str, Any]:
    """Return the settings that differ from their default as JSON values, those of registries' members likewise."""
    hints = get_type_hints(type(settings), include_extras=True)
    default = type(settings)()
    differing = {}
    for name in (setting.name for setting in fields(settings) if setting.metadata.get("key", True)):
        value, usual = (_reduced(hints[name], getattr(instance, name)) for instance in (settings, default))
        if value != usual:
            differing[name] = value
    return differing


def _reduced(kind: Any, value: Any) -> Any:
    if is_dataclass(value):
        return without_defaults(value)
    package = next((marker.registry for part in alternatives(kind) for marker in markers(part)), None)
    if package is None:
        return _to_json(value)
    if isinstance(value, Mapping):
        return _reduced_member(package, value)
    return [_reduced_member(package, member) for member in value]


def _reduced_member(package: str, value: Tagged) -> Tagged:
    from reread.storage.registry import registry  # which reads settings itself

    _, settings = registry(package).resolve(value)
    return {"name": value["name"], **without_defaults(settings)}


def members(settings: Any) -> Iterator[tuple[str, Tagged]]:
    """Yield (registry's package, tagged mapping) for each member that the settings name, nested ones as well."""
    hints = get_type_hints(type(settings), include_extras=True)
    for name, kind in hints.items():
        value = getattr(settings, name)
        if is_dataclass(value):
            yield from members(value)
        for marker in (marker for part in alternatives(kind) for marker in markers(part)):
            for member in [value] if isinstance(value, Mapping) else value or ():
                yield marker.registry, member


def alternatives(kind: Any) -> list[Any]:
    """Return the parts of an annotation: of ``X | None`` both, of ``tuple[X, ...]`` X."""
    if get_origin(kind) in (Union, UnionType):
        return [part for argument in get_args(kind) for part in alternatives(argument)]
    if get_origin(kind) in (tuple, list):
        return [part for argument in get_args(kind) if argument is not ... for part in alternatives(argument)]
    return [kind]


def markers(kind: Any) -> list[OneOf]:
    """Return the OneOf markers of an annotation."""
    return [part for part in get_args(kind)[1:] if isinstance(part, OneOf)] if get_origin(kind) is Annotated else []
