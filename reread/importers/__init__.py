"""Readers of scores, one file per format. A new format is a new file that defines

    recognises(source: Source) -> bool    whether a source is of this format, by its name and its first bytes
    read(source: Source) -> Table         its rows

and whose first line of its docstring names it. ``--from NAME`` of `reread judge` chooses a file; without it the formats
are asked, ``table`` last. A format imports the library that it needs inside ``read``.
"""

import functools
import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from reread.storage.errors import InputError
from reread.storage.registry import Registry

REGISTRY = Registry("reread.importers", "format", ("recognises", "read"))
FALLBACK = "table"
HEAD = 65_536
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://|file:")


@dataclass(frozen=True)
class Source:
    """A file, a folder or the address of a server that has scores.

    text: its path or address. arm: the arm that was named before it, ``ARM=FILE``. count: how many sources its arm has.
    number: the whole number in which their paths differ, else its place among them, from 0.
    """

    text: str
    arm: str | None = None
    number: int = 0
    count: int = 1

    @property
    def path(self) -> Path:
        return Path(self.text)

    @property
    def is_address(self) -> bool:
        return ADDRESS.match(self.text) is not None

    @functools.cached_property
    def head(self) -> bytes:
        """The first bytes of a file; empty for a folder and an address."""
        if self.is_address or not self.path.is_file():
            return b""
        with open(self.path, "rb") as file:
            return file.read(HEAD)


@dataclass(frozen=True)
class Table:
    """Rows of scores as columns of equal length.

    roles: the column that is the arm, seed, score, item, group or metric where its name is another one. prefix: of the
    columns that are metrics ("metrics." of MLflow). numbered: whether a source without a column of seeds is one unit,
    whose seed is its number. finished: of a tracker's runs the column of their state and its value of a finished run;
    rows without an arm are other runs then. runs: the column that names a row where rows have no number, as in a
    database. aliases: other names of metrics. lower_is_better: of the scores; None where the format does not say.
    about: what must be equal in all sources, such as the task. cautions: what a reader of a verdict should know.
    """

    columns: Mapping[str, Sequence[Any]]
    roles: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    numbered: bool = False
    finished: tuple[str, str] | None = None
    runs: str = ""
    aliases: Mapping[str, str] = field(default_factory=dict)
    lower_is_better: bool | None = None
    about: Mapping[str, str] = field(default_factory=dict)
    cautions: Sequence[str] = ()


def find_format(source: Source, name: str | None = None) -> ModuleType:
    """Return the format ``name``, or the one that recognises the source; InputError where none does, and for an address
    where ``name`` is a format of files."""
    if not source.is_address and not source.path.exists():
        raise InputError(f"{source.text} does not exist: give a file of scores")
    if name:
        named = REGISTRY.module(name)
        if source.is_address and not named.recognises(source):
            raise InputError(f"{source.text} is no address that {name} reads: give a file, or leave out --from")
        return named
    known = REGISTRY.available()
    for candidate in sorted(known, key=lambda known_name: known_name == FALLBACK):
        module = REGISTRY.module(candidate)
        if module.recognises(source):
            return module
    if not source.is_address and source.path.is_file() and not source.head.strip():
        raise InputError(f"{source.text} is empty: give a file of scores")
    raise InputError(f"the format of {source.text} is not recognised: name it by --from, one of {', '.join(known)}")


def library(name: str, what: str) -> ModuleType:
    """Import the optional library ``name``; InputError says what to install where it is missing."""
    try:
        return importlib.import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise InputError(f"{what} need the package {package}, which is not installed: pip install {package}") from None
