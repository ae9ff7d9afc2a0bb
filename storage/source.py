"""Which source files a module depends on, read by ``ast`` and never imported: what keys name the code by.

A key made of these digests changes when a file changes that the result can depend on, and does not change
when a new network or a new data set is added beside it.
"""

import ast
import threading
from collections.abc import Iterable
from pathlib import Path

from storage.files import sha256_file

ROOT = Path(__file__).resolve().parent.parent
# Two threads that parse at once can fail with "AST constructor recursion depth mismatch" (CPython issue 106905): ours
# take turns, and what fails because a library's thread parsed meanwhile is parsed again.
PARSING = threading.Lock()
ATTEMPTS = 20


def parse(path: Path) -> ast.Module:
    """The syntax tree of a source file; safe to call from several threads."""
    source = path.read_bytes()
    with PARSING:
        for _ in range(ATTEMPTS - 1):
            try:
                return ast.parse(source, str(path))
            except SystemError:
                continue
        return ast.parse(source, str(path))


def module_file(name: str, root: Path = ROOT) -> Path | None:
    """The file of the project's module ``name`` (dotted), or None where the project has none."""
    stem = root.joinpath(*name.split("."))
    for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
        if candidate.is_file():
            return candidate
    return None


def imported_files(path: Path, root: Path = ROOT) -> set[Path]:
    """The project's files that ``path`` imports directly, with the ``__init__.py`` of each package on the way."""
    files: set[Path] = set()
    for node in ast.walk(parse(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module] + [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                file = module_file(".".join(parts[:end]), root)
                if file:
                    files.add(file)
    return files


def closure(modules: Iterable[str], root: Path = ROOT) -> list[Path]:
    """All the project's files that ``modules`` reach by imports; a package stands for each of its files."""
    waiting: list[Path] = []
    for name in modules:
        file = module_file(name, root)
        if file is None:
            raise ValueError(f"no module {name} in {root}")
        waiting += sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached:
            reached.add(path)
            waiting += imported_files(path, root)
    return sorted(reached)


def source_digests(modules: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """sha256 of each file of the closure, by its path from the project's root."""
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in closure(modules, root)}
