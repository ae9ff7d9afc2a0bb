"""Registries: the members of a package are its files, found by name and imported only when used.

A new network, optimiser or augmentation is one new file in its package's folder; no list names it, so no other file
changes and no other run's key does.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from types import ModuleType
from typing import Any

from reread.storage import outside
from reread.storage.errors import InputError, nearest
from reread.storage.settings import from_json
from reread.storage.source import ROOT, defined_names, parse


@dataclass(frozen=True)
class Registry:
    """The members of ``package`` (dotted): each file there that defines all names of ``requires``.

    ``what`` names a member in messages ("network", "optimiser").
    """

    package: str
    what: str
    requires: tuple[str, ...] = ("Settings", "build")

    @property
    def folder(self) -> Path:
        return ROOT.joinpath(*self.package.split("."))

    def available(self) -> list[str]:
        """Return the members' names in order. Files are parsed and not imported."""
        folder = self.folder
        files = (folder / file for file in glob("*.py", root_dir=folder))
        return sorted(path.stem for path in files if self._is_member(path))

    def __contains__(self, name: str) -> bool:
        folder, file = self.folder, f"{name}.py"
        return file in glob("*.py", root_dir=folder) and self._is_member(folder / file)

    def _is_member(self, path: Path) -> bool:
        return defined_names(path).issuperset(self.requires)

    def module(self, name: str) -> ModuleType:
        """Import the member ``name``; InputError names what its file lacks or, where there is none, the nearest one.

        Another package may provide it (reread/storage/outside.py).
        """
        if outside.provides(self.package, name):
            return outside.module(self.package, name)
        if name not in self:
            raise InputError(_why_not(self, name))
        return importlib.import_module(f"{self.package}.{name}")

    def resolve(self, tagged: Mapping[str, Any]) -> tuple[ModuleType, Any]:
        """Return the member that ``{"name": NAME, SETTING: VALUE, ...}`` names, and its Settings with these values."""
        values = dict(tagged)
        module = self.module(values.pop("name"))
        return module, from_json(module.Settings, values)


def _why_not(registry: Registry, name: str) -> str:
    """Say why ``name`` is no member of ``registry``. No key has this text (reread/storage/numeric.py)."""
    path = registry.folder / f"{name}.py"
    if name.isidentifier() and path.is_file():
        parse(path)  # a syntax error has its own message
        defined = defined_names(path)
        missing = [needed for needed in registry.requires if needed not in defined]
        return f"{path.relative_to(ROOT)} defines no {missing[0]}, which every {registry.what} must have: define it"
    known = [*registry.available(), *outside.entry_points(registry.package)]
    return f"unknown {registry.what} '{name}': {nearest(name, known)}"


@functools.cache
def registry(package: str) -> Registry:
    """Return the registry that ``package`` defines as REGISTRY."""
    return importlib.import_module(package).REGISTRY
