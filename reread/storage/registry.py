"""Registries: the members of a package are its files, found by name and imported only when used.

A new network, optimiser or augmentation is one new file in its package's folder; no list names it, so no other file
changes and no other run's key does.
"""

import functools
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from reread.storage import outside
from reread.storage.errors import InputError, nearest
from reread.storage.settings import from_json
from reread.storage.source import ROOT, defined_names


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
        return sorted(path.stem for path in self.folder.glob("*.py") if set(self.requires) <= defined_names(path))

    def module(self, name: str) -> ModuleType:
        """Import the member ``name``; InputError names the nearest one where there is none.

        Another package may provide it (reread/storage/outside.py).
        """
        if outside.provides(self.package, name):
            return outside.module(self.package, name)
        if name not in self.available():
            raise InputError(
                f"unknown {self.what} '{name}': "
                f"{nearest(name, [*self.available(), *outside.entry_points(self.package)])}"
            )
        return importlib.import_module(f"{self.package}.{name}")

    def resolve(self, tagged: Mapping[str, Any]) -> tuple[ModuleType, Any]:
        """Return the member that ``{"name": NAME, SETTING: VALUE, ...}`` names, and its Settings with these values."""
        values = dict(tagged)
        module = self.module(values.pop("name"))
        return module, from_json(module.Settings, values)


@functools.cache
def registry(package: str) -> Registry:
    """Return the registry that ``package`` defines as REGISTRY."""
    return importlib.import_module(package).REGISTRY
