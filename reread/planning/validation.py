"""Checks of what people write: settings and files against their annotations, by pydantic, answered in one line.

``read`` makes the settings of any dataclass (reread.storage.settings); ``validate`` reads anything else that pydantic
knows. Numbers, text and truth values are never converted, apart from whole numbers where a number is expected.
"""

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from reread.storage.errors import InputError, nearest, printable
from reread.storage.registry import registry
from reread.storage.settings import Tagged, alternatives, markers, to_json
from reread.storage.source import ROOT, module_file

CONFIG = ConfigDict(strict=True, extra="forbid")
QUOTED = re.compile("'([^']*)'")
EXPONENT = re.compile(r"[+-]?[\d.]+[eE][+-]?\d+")
UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def read(cls: type, mapping: Any, where: str) -> Any:
    """Return the settings ``cls`` with the values of ``mapping``, defaults filled in, those of registries' members too.

    InputError names the setting by its path, which begins with ``where``, and the nearest right name; or what is wrong
    with ``cls``.
    """
    refuse_wrong_class(cls, where)
    if isinstance(mapping, Mapping):
        mapping = {**mapping, **_resolved_members(cls, mapping, where)}
    return validate(cls, mapping, where)


def validate(kind: Any, value: Any, where: str) -> Any:
    """Return ``value``, which YAML or JSON held, as ``kind``. InputError names the place, which begins at ``where``."""
    try:
        # By way of JSON: there pydantic takes mappings for dataclasses and lists for tuples also where it is strict.
        return _adapter(kind).validate_json(json.dumps({where: value}, default=str))[where]
    except ValidationError as error:
        if error.errors()[0]["type"] == "json_invalid":
            raise InputError(
                f"{where} has a character that UTF-8 cannot encode, or is nested too deeply: remove that"
            ) from None
        raise InputError(_one_line(error, kind, {where: value})) from None


@functools.cache
def refuse_wrong_class(cls: type, where: str) -> None:
    """InputError where settings are no dataclass with annotations that can be read; it names their file, or ``where``
    the settings are. Those of a file of this project are frozen."""
    file = module_file(getattr(cls, "__module__", ""))
    place = f"{file.relative_to(ROOT) if file else where}: {getattr(cls, '__name__', 'Settings')}"
    if not is_dataclass(cls):
        raise InputError(f"{place} is no dataclass: write @dataclass(frozen=True) above it")
    try:
        get_type_hints(cls, include_extras=True)
        _adapter(cls)
    except (AttributeError, NameError, SyntaxError, TypeError, PydanticUserError) as error:
        reason = "".join(str(error).splitlines()[:1])
        raise InputError(
            f"{place} has an annotation that cannot be read ({type(error).__name__}: {reason}): correct it"
        ) from None
    if file and not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise InputError(f"{place} is not frozen: write @dataclass(frozen=True) above it")


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the reader of {place: value}, so that the place begins the path of an error."""
    return TypeAdapter(dict[str, kind], config=None if _is_model(kind) else CONFIG)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _resolved_members(cls: type, mapping: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of ``cls`` that name registries' members, each as {"name": NAME, every SETTING: VALUE}."""
    hints = get_type_hints(cls, include_extras=True)
    resolved: dict[str, Any] = {}
    for field in fields(cls):
        usual = field.default if field.default_factory is MISSING else field.default_factory()
        given = mapping.get(field.name, usual)
        for marker in (marker for alternative in alternatives(hints[field.name]) for marker in markers(alternative)):
            if get_origin(hints[field.name]) is tuple:
                if isinstance(given, list | tuple):
                    place = f"{where}.{field.name}"
                    resolved[field.name] = [_member(marker.registry, member, None, place) for member in given]
            elif given is not None and given is not MISSING:
                resolved[field.name] = _member(marker.registry, given, usual, f"{where}.{field.name}")
    return resolved


def _member(package: str, given: Any, usual: Any, where: str) -> Tagged:
    """A member and its settings. ``given`` may be its name alone, or settings of the ``usual`` member without one."""
    values = {"name": given} if isinstance(given, str) else given
    if not isinstance(values, Mapping):
        raise InputError(f"{where} is {given!r}: give a name, or a mapping such as {{name: NAME}}")
    if isinstance(usual, Mapping) and values.get("name", usual["name"]) == usual["name"]:
        values = {**usual, **values}
    if not isinstance(values.get("name"), str):
        raise InputError(f"{where} has no 'name': {nearest('', registry(package).available())}")
    name = values["name"]
    try:
        module = registry(package).module(name)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    settings = {key: value for key, value in values.items() if key != "name"}
    return {"name": name, **to_json(read(module.Settings, settings, where))}


def _place(steps: tuple[int | str, ...], value: Any) -> list[int | str]:
    """The part of an error's path that is in ``value``: without a missing name, and without the types of a union."""
    place = []
    for step in steps:
        inner = dict(enumerate(value)) if isinstance(value, list | tuple) else value
        known = {str(name): part for name, part in inner.items()} if isinstance(inner, Mapping) else {}
        if str(step) in known:
            place.append(step)
            value = known[str(step)]
    return place


def _one_line(error: ValidationError, kind: Any, value: Any) -> str:
    """The first thing that is wrong with ``value``, and where; ``kind`` is what was expected."""
    first = error.errors(include_url=False)[0]
    where, *path = _place(first["loc"], value)
    if first["type"].startswith("missing"):
        path.append(first["loc"][-1])
    place = printable(".".join([str(where), *map(str, path)]))
    parent = ".".join([str(where), *map(str, path[:-1])])
    if first["type"] in UNKNOWN:
        return f"unknown name '{path[-1]}' in {parent}: {nearest(path[-1], _names(kind, path[:-1]))}"
    if first["type"].startswith("missing"):
        return f"{parent} has no '{path[-1]}': add it"
    if first["type"] in ("value_error", "assertion_error"):
        return f"{place}: {first['ctx']['error']}"
    problem = f"{place} is {first['input']!r}"
    if first["type"] == "literal_error":
        return f"{problem}: {nearest(str(first['input']), QUOTED.findall(first['ctx']['expected']))}"
    exponent = isinstance(first["input"], str) and EXPONENT.fullmatch(first["input"])
    hint = " (YAML reads 1e-3 as text: write 1.0e-3)" if exponent else ""
    return f"{problem}: {first['msg'].replace('Input', 'it', 1)}{hint}"


def _names(kind: Any, path: list[int | str]) -> list[str]:
    """The names that a mapping at ``path`` within ``kind`` may have."""
    for step in [*path, None]:
        options = [get_args(option)[0] if hasattr(option, "__metadata__") else option for option in alternatives(kind)]
        kind = next((option for option in options if is_dataclass(option) or _is_model(option)), options[0])
        if step is None:
            break
        if isinstance(step, int):  # of a list, whose elements are ``options``
            continue
        if is_dataclass(kind) or _is_model(kind):
            kind = get_type_hints(kind, include_extras=True)[str(step)]
        else:
            kind = get_args(kind)[-1] if get_args(kind) else kind
    return [field.name for field in fields(kind)] if is_dataclass(kind) else list(getattr(kind, "model_fields", ()))
