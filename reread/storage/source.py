"""The source of the project, read by ``ast`` and never imported: its files, what they import, and their digests.

A package outside of the project, which a network is from, is read likewise: where modules of it are asked for.
"""

import ast
import functools
import importlib.util
import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from reread.storage.errors import InputError
from reread.storage.files import sha256_bytes

ROOT = Path(__file__).resolve().parents[2]
# The rooms whose code decides a result.
ROOMS = (
    "cuda_ext",
    "models",
    "reread/batches",
    "reread/evaluation",
    "reread/kinds",
    "reread/preprocessing",
    "reread/runtime",
    "reread/storage",
    "reread/training",
)
SUFFIXES = (".py", ".cu", ".cuh")
# Two threads that parse at once can fail with "AST constructor recursion depth mismatch" (CPython issue 106905). A lock
# serialises this module's threads; a failure caused by a library's thread is retried.
PARSING = threading.Lock()
ATTEMPTS = 20


# Packages outside of the project by their name: the folder, or the file of a package that is one.
Outside = Mapping[str, Path]
NONE: Outside = MappingProxyType({})


class NoModule(ValueError):
    """The project has no module of this name."""


def changed(path: Path) -> tuple[int, int]:
    """Return a file's modification time and size, by which results computed from it are cached."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def _read_all() -> dict[Path, tuple[tuple[int, int], bytes]]:
    paths = (path for room in ROOMS for path in ROOT.joinpath(room).rglob("*") if path.suffix in SUFFIXES)
    return {path: (changed(path), path.read_bytes()) for path in paths}


# The source as it is when a process starts. Modules are imported at any later time: by then a file may be another.
_AT_START = _read_all()
# The places of the outside packages that this process computes with.
_HELD: set[Path] = set()


def content(path: Path) -> bytes:
    """Return a source file: of this project as it was when the process started, or when it was first asked for.

    So is a file of an outside package that a network of this process is from.
    """
    if not path.is_relative_to(ROOT) and not any(path.is_relative_to(place) for place in _HELD):
        return path.read_bytes()
    if path not in _AT_START:
        _AT_START[path] = (changed(path), path.read_bytes())
    return _AT_START[path][1]


def edited(paths: Iterable[Path]) -> list[Path]:
    """Return the files of this project, and of outside packages, whose ``content`` is no longer on the disk."""
    differing = []
    for path in paths:
        try:
            before, text = _AT_START[path]
            if changed(path) != before and path.read_bytes() != text:
                differing.append(path)
        except FileNotFoundError:
            differing.append(path)
    return differing


def parse(path: Path) -> ast.Module:
    """Parse a source file as it is on the disk; safe to call from several threads."""
    return parsed(path.read_bytes(), path)


def parsed(source: bytes, path: Path) -> ast.Module:
    """Parse the ``source`` of the file ``path``; safe to call from several threads."""
    with PARSING:
        for _ in range(ATTEMPTS - 1):
            try:
                return ast.parse(source, str(path))
            except SystemError:
                continue
        return ast.parse(source, str(path))


@functools.cache
def _defined_names(path: Path, _changed: tuple[int, int]) -> frozenset[str]:
    names: set[str] = set()
    try:
        body = parse(path).body
    except SyntaxError:
        return frozenset()
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def defined_names(path: Path) -> frozenset[str]:
    """Return the names that a source file defines at its top level; none where it does not parse."""
    return _defined_names(path, changed(path))


def constant(path: Path, name: str) -> Any:
    """Return the literal that a source file assigns to ``name`` at its top level; the file is not imported."""
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id == name for target in node.targets
        ):
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} assigns no {name}")


def outside_packages(modules: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """Return the packages of ``modules`` that are installed and not in the project, by name.

    What this process reads of them stays as it is (``content``).
    """
    tops = {name.split(".")[0] for name in modules}
    places = {top: place for top in tops if not in_project(top, root) and (place := _installed(top))}
    if root == ROOT:
        _HELD.update(places.values())
    return places


def in_project(top: str, root: Path = ROOT) -> bool:
    """Return whether the project has a top-level package or module of this name."""
    return module_file(top, root) is not None or (root / top).is_dir()


def _installed(top: str) -> Path | None:
    """Return the folder of an importable package, or its file; None for one of the project itself, and for none."""
    if in_project(top):
        return None
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location and spec.origin else ())]
    return Path(places[0]).resolve() if places else None


def root_of(path: Path, root: Path = ROOT, outside: Outside = NONE) -> Path:
    """Return the folder below which the modules of a file's package are: ``root``, or that of an outside package."""
    return next((place.parent for place in outside.values() if path.is_relative_to(place)), root)


def module_file(name: str, root: Path = ROOT, outside: Outside = NONE) -> Path | None:
    """Return the file of module ``name`` (dotted) of the project or of a package ``outside``, None where there is
    none."""
    # Text, and no Path: thousands of names are looked up for each key.
    top, *rest = name.split(".")
    stem = os.path.join(outside[top].parent if top in outside else root, top, *rest)
    for candidate in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(candidate):
            return Path(candidate)
    return None


def imported_names(tree: ast.AST, path: Path, root: Path = ROOT) -> dict[str, set[str]]:
    """Return the names that the imports of a file bind, with the dotted addresses of each.

    ``import a.b`` binds a to ``a`` and, for the sake of its import, a.b to ``a.b``; ``from .a import b as c`` in the
    package p binds c to ``p.a.b``.
    """
    names = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name].add(alias.name)
                if not alias.asname:
                    names[alias.name.split(".")[0]].add(alias.name.split(".")[0])
        elif isinstance(node, ast.ImportFrom):
            module = f"{_package(path, node.level, root)}{node.module or ''}".rstrip(".")
            for alias in node.names:
                names[alias.asname or alias.name].add(f"{module}.{alias.name}")
    return dict(names)


def _package(path: Path, level: int, root: Path) -> str:
    """Return the package that a relative import of ``level`` dots in a file means, with a dot; "" where level is 0."""
    if not level or not path.is_relative_to(root):
        return ""
    return "".join(f"{part}." for part in path.parents[level - 1].relative_to(root).parts)


@functools.lru_cache(maxsize=1024)
def _imports(path: Path, root: Path, _changed: tuple[int, int] | None) -> frozenset[str]:
    imported = imported_names(parsed(content(path), path), path, root).values()
    return packages_and_modules(itertools.chain(*imported))


def packages_and_modules(addresses: Iterable[str]) -> frozenset[str]:
    """Return dotted addresses with their packages: a, a.b and a.b.c of a.b.c."""
    parts = [address.split(".") for address in addresses]
    return frozenset(".".join(names[:end]) for names in parts for end in range(1, len(names) + 1))


def imported_files(path: Path, root: Path = ROOT, outside: Outside = NONE) -> set[Path]:
    """Return the files of the project and of packages ``outside`` that ``path`` imports directly, with the
    ``__init__.py`` of their packages."""
    names = _imports(path, root_of(path, root, outside), None if path.is_relative_to(ROOT) else changed(path))
    return {file for name in names if (file := module_file(name, root, outside))}


def root_files(name: str, root: Path = ROOT, outside: Outside = NONE) -> list[Path]:
    """Return the file of module ``name``, or each file of the package; NoModule where there is none."""
    file = module_file(name, root, outside)
    if file is None:
        raise NoModule(f"no module {name} in {root}")
    return sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]


def closure(
    modules: Iterable[str],
    root: Path = ROOT,
    without: Iterable[str] = (),
    imported: Callable[[Path], set[Path]] | None = None,
) -> list[Path]:
    """Return all files that ``modules`` reach by imports, in the project and in the packages of ``modules``; a package
    means each of its files.

    The modules of ``without`` are left out, and so is what only they reach. imported: what a file imports directly, by
    default ``imported_files``.
    """
    modules = list(modules)
    outside = outside_packages(modules, root)
    imported = imported or functools.partial(imported_files, root=root, outside=outside)
    left_out = {module_file(name, root) for name in without}
    waiting = [file for name in modules for file in root_files(name, root, outside)]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached and path not in left_out:
            reached.add(path)
            waiting += imported(path)
    return sorted(reached)


def source_digests(modules: Iterable[str]) -> dict[str, str]:
    """Return the sha256 of each file of the closure, by its path from the project's root; InputError for a file that
    has changed since the process started."""
    files = closure(modules)
    refuse_edited(edited(files))
    return {path.relative_to(ROOT).as_posix(): sha256_bytes(content(path)) for path in files}


def refuse_edited(files: list[Path]) -> None:
    """Raise InputError where there are ``files`` that changed while this process ran: it would name the wrong code."""
    if files:
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        path = files[0].relative_to(ROOT) if files[0].is_relative_to(ROOT) else files[0]
        raise InputError(
            f"{path}{more} changed while this process ran, which imported it as it was before: run the command again"
        )
