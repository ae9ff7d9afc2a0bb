"""Networks of other packages: PACKAGE.MODULE, PACKAGE.MODULE:NAME, or an entry point of the group ``reread.models``.

PACKAGE.MODULE has the names that a file of models/ has. NAME is a class or a function:
``NAME(description=..., **settings)`` returns the network, description being the data set's prepared.json. Its other
parameters, each with a default, are the settings; their annotations are checked. Attributes of NAME:

KIND       optional, else that of the module: "text" or "image", the only kind of data that the network reads
DEBUG      optional: settings of a size for tests, a mapping; else the defaults
"""

import copy
import functools
import importlib
import importlib.metadata
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import field, make_dataclass
from types import ModuleType
from typing import Any

from reread.storage.errors import InputError, nearest
from reread.storage.settings import to_json
from reread.storage.source import NoModule, closure, module_file, outside_packages

# The registries whose members other packages provide, with the group of their entry points.
GROUPS = {"models": "reread.models"}
ADDRESS = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")
REQUIRED, OPTIONAL = ("Settings", "DEBUG", "build"), ("KIND", "SIZES", "load_initial_weights")


@functools.cache
def entry_points(package: str) -> Mapping[str, str]:
    """Return the addresses of the members that installed packages offer to the registry ``package``, by their names."""
    group = GROUPS.get(package)
    return {point.name: point.value for point in importlib.metadata.entry_points(group=group)} if group else {}


def provides(package: str, name: str) -> bool:
    """Return whether ``name`` is of another package: an address, or an entry point where ``package`` has no such
    file."""
    if package not in GROUPS:
        return False
    return "." in name or ":" in name or (name in entry_points(package) and module_file(f"{package}.{name}") is None)


def address(package: str, name: str) -> str:
    """Return MODULE or MODULE:NAME of a member that another package provides; InputError where it is neither."""
    where = entry_points(package).get(name, name)
    if not ADDRESS.fullmatch(where):
        raise InputError(f"'{where}' is no address of a module: write PACKAGE.MODULE:NAME")
    return where


def module(package: str, name: str) -> ModuleType:
    """Return a member that another package provides as a module with the names that a file of ``package`` has.

    InputError where it is not importable, where there is no such name, and where it is no network.
    """
    return _module(address(package, name))


@functools.cache
def _module(where: str) -> ModuleType:
    module_name, _, name = where.partition(":")
    imported = _imported(module_name)
    member = ModuleType(where)
    build = _of_callable(imported, name, where, member) if name else _of_module(imported, where, member)

    def checked(settings: Any, description: Mapping[str, Any]) -> Any:
        network = build(settings, description)
        _refuse_no_network(isinstance(network, _torch_module()), f"{where} makes a {type(network).__name__}")
        return network

    vars(member)["build"] = checked
    for title, settings in (("a default", member.Settings()), ("DEBUG", member.DEBUG)):
        try:
            json.dumps(to_json(settings))
        except TypeError as error:
            raise InputError(
                f"{where}: {title} is no value that YAML has ({error}): use numbers, text or lists"
            ) from None
    return member


def _imported(name: str) -> ModuleType:
    try:
        closure([name])  # its source is read before it is imported: keys name the code that this process has
        return importlib.import_module(name)
    except NoModule:
        pass
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise InputError(f"'{name}' imports '{error.name}', which is not installed here: install it") from None
    except Exception as error:
        reason = str(error).splitlines() or ["no reason given"]
        raise InputError(f"'{name}' fails when it is imported ({type(error).__name__}: {reason[0]})") from None
    package = name.rpartition(".")[0]
    file = module_file(package, outside=outside_packages([package])) if package else None
    if file and file.name == "__init__.py":
        known = [f"{package}.{path.stem}" for path in file.parent.glob("*.py") if path != file]
        raise InputError(f"'{package}' has no module '{name}': {nearest(name, known)}")
    raise InputError(
        f"'{name}' is not importable here (no package of that name): install its package in this environment, or add "
        "its folder to PYTHONPATH"
    )


def _of_module(imported: ModuleType, where: str, member: ModuleType) -> Callable[[Any, Any], Any]:
    missing = [name for name in REQUIRED if not hasattr(imported, name)]
    if missing:
        raise InputError(
            f"{where} has no '{missing[0]}': a module needs {', '.join(REQUIRED)}; a class or function of it is "
            f"{where}:NAME"
        )
    vars(member).update({name: getattr(imported, name) for name in (*REQUIRED, *OPTIONAL) if hasattr(imported, name)})
    return imported.build


def _of_callable(imported: ModuleType, name: str, where: str, member: ModuleType) -> Callable[[Any, Any], Any]:
    make = getattr(imported, name, None)
    if make is None:
        names = [key for key, value in vars(imported).items() if callable(value) and not key.startswith("_")]
        raise InputError(f"'{imported.__name__}' has no '{name}': {nearest(name, names)}")
    _refuse_no_network(callable(make), f"{where} is a {type(make).__name__}")
    _refuse_no_network(not isinstance(make, type) or issubclass(make, _torch_module()), f"{where} is another class")
    settings = _settings(make, where)
    debug = getattr(make, "DEBUG", {})
    try:
        vars(member).update(Settings=settings, DEBUG=settings(**debug))
    except TypeError as error:
        raise InputError(f"{where}: DEBUG is no mapping of its settings ({error})") from None
    if kind := getattr(make, "KIND", getattr(imported, "KIND", None)):
        vars(member)["KIND"] = kind
    return lambda settings, description: make(description=description, **vars(settings))


def _settings(make: Callable[..., Any], where: str) -> type:
    """Return the parameters of a class or function, but ``description``, as a dataclass of settings."""
    try:
        parameters = inspect.signature(make, eval_str=True).parameters
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"{where}: its parameters cannot be read ({error})") from None
    if "description" not in parameters:
        raise InputError(f"{where} has no parameter 'description': add it; it is given the data set's description")
    fields = []
    for parameter in parameters.values():
        if parameter.name == "description" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY:
            raise InputError(f"{where}: parameter '{parameter.name}' needs a name and a default: it is a setting")
        usual = functools.partial(copy.deepcopy, parameter.default)
        kind = Any if parameter.annotation is parameter.empty else parameter.annotation
        fields.append((parameter.name, kind, field(default_factory=usual)))
    return make_dataclass("Settings", fields, frozen=True, namespace={"__module__": where})


def _torch_module() -> type:
    from torch import nn

    return nn.Module


def _refuse_no_network(passes: bool, what: str) -> None:
    if not passes:
        raise InputError(f"{what}, and no torch.nn.Module: name a class or function that makes a network")
