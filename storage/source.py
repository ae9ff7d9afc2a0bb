"""Digests of the source that a result depends on, read by ``ast`` and never imported; keys contain them.

``numeric_digest`` is a digest of the normalised syntax trees of all files that some modules reach by imports. It
changes with a constant or an operation. These do not change it:

- docstrings, comments, positions, annotations, and the text of an exception or a warning
- a new field of a Settings class, and a network's named SIZES
- the name or place of a file, and a new file that none of these modules imports
"""

import ast
import copy
import functools
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from storage.files import sha256_bytes, sha256_file

ROOT = Path(__file__).resolve().parent.parent
# Two threads that parse at once can fail with "AST constructor recursion depth mismatch" (CPython issue 106905). A lock
# serialises this module's threads; a failure caused by a library's thread is retried.
PARSING = threading.Lock()
ATTEMPTS = 20
# Fields of a syntax tree that affect no number.
NOT_WRITTEN = frozenset({"kind", "annotation", "returns", "type_comment", "type_params"})
# Modules that training uses and that affect no number.
NOT_NUMERIC = (
    "storage",
    "kinds.__init__",
    "cuda_ext.build",
    "cuda_ext.library",
    "models.__init__",
    "runtime.gpu_lease",
    "training.checkpoint",
    "training.launcher",
    "training.machine",
    "training.progress",
    "training.run",
)


def parse(path: Path) -> ast.Module:
    """Parse a source file; safe to call from several threads."""
    source = path.read_bytes()
    with PARSING:
        for _ in range(ATTEMPTS - 1):
            try:
                return ast.parse(source, str(path))
            except SystemError:
                continue
        return ast.parse(source, str(path))


@functools.lru_cache(maxsize=128)
def _tree(path: Path, _changed: tuple[int, int]) -> ast.Module:
    """Return the syntax tree of a file, which nobody changes."""
    return parse(path)


@functools.cache
def _defined_names(path: Path, _changed: tuple[int, int]) -> frozenset[str]:
    names: set[str] = set()
    for node in parse(path).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return frozenset(names)


def changed(path: Path) -> tuple[int, int]:
    """Return a file's modification time and size, by which results computed from it are cached."""
    about = path.stat()
    return about.st_mtime_ns, about.st_size


def defined_names(path: Path) -> frozenset[str]:
    """Return the names that a source file defines at its top level."""
    return _defined_names(path, changed(path))


def constant(path: Path, name: str) -> Any:
    """Return the literal that a source file assigns to ``name`` at its top level; the file is not imported."""
    for node in parse(path).body:
        if isinstance(node, ast.Assign) and any(isinstance(one, ast.Name) and one.id == name for one in node.targets):
            return ast.literal_eval(node.value)
    raise ValueError(f"{path} assigns no {name}")


def module_file(name: str, root: Path = ROOT) -> Path | None:
    """Return the file of the project's module ``name`` (dotted), or None where the project has none."""
    # Text, and no Path: thousands of names are looked up for each key.
    stem = os.path.join(root, *name.split("."))
    for candidate in (f"{stem}.py", os.path.join(stem, "__init__.py")):
        if os.path.isfile(candidate):
            return Path(candidate)
    return None


@functools.lru_cache(maxsize=1024)
def _imported_names(path: Path, _changed: tuple[int, int]) -> frozenset[str]:
    """Return the dotted names that a file imports, each with the packages above it."""
    names: set[str] = set()
    for node in ast.walk(_tree(path, _changed)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    parts = [name.split(".") for name in names]
    return frozenset(".".join(name[:end]) for name in parts for end in range(1, len(name) + 1))


def imported_files(path: Path, root: Path = ROOT) -> set[Path]:
    """Return the project's files that ``path`` imports directly, with the ``__init__.py`` of their packages."""
    names = _imported_names(path, changed(path))
    return {file for name in names if (file := module_file(name, root))}


def closure(modules: Iterable[str], root: Path = ROOT, without: Iterable[str] = ()) -> list[Path]:
    """Return all files of the project that ``modules`` reach by imports; a package means each of its files.

    The modules and packages of ``without`` are left out, and so is what only they reach.
    """
    left_out = _left_out(without, root)
    waiting: list[Path] = []
    for name in modules:
        file = module_file(name, root)
        if file is None:
            raise ValueError(f"no module {name} in {root}")
        waiting += sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    reached: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path not in reached and path not in left_out:
            reached.add(path)
            waiting += imported_files(path, root)
    return sorted(reached)


def _left_out(without: Iterable[str], root: Path) -> frozenset[Path]:
    files = {file for name in without if (file := module_file(name, root))}
    return frozenset(files | {file for name in without for file in root.joinpath(*name.split(".")).glob("**/*.py")})


def source_digests(modules: Iterable[str], root: Path = ROOT) -> dict[str, str]:
    """Return the sha256 of each file of the closure, by its path from the project's root."""
    return {path.relative_to(root).as_posix(): sha256_file(path) for path in closure(modules, root)}


def numeric_digest(modules: Iterable[str], root: Path = ROOT, without: Iterable[str] = NOT_NUMERIC) -> str:
    """Return the sha256 of the normalised source of all files that ``modules`` reach, whatever their names."""
    left_out = _left_out(without, root)
    digests = sorted(normalised_digest(path, root, left_out) for path in closure(modules, root, without))
    return sha256_bytes("\n".join(digests).encode())


def numeric_files(modules: Iterable[str], root: Path = ROOT, without: Iterable[str] = NOT_NUMERIC) -> dict[str, str]:
    """Return the digest of each file's own content, by its path from the project's root, to name a difference."""
    return {path.relative_to(root).as_posix(): content_digest(path, root) for path in closure(modules, root, without)}


def normalised_digest(path: Path, root: Path = ROOT, without: frozenset[Path] = frozenset()) -> str:
    """Return the sha256 of a file's normalised syntax tree, equal on every version of Python.

    Imports of the project count by the content of the imported file, not by its name; imports of the files
    ``without`` do not count.
    """
    imported = tuple((file, changed(file)) for file in sorted(imported_files(path, root)))
    return _normalised_digest(path, root, without, changed(path), imported)


@functools.lru_cache(maxsize=1024)
def _normalised_digest(
    path: Path,
    root: Path,
    without: frozenset[Path],
    _changed: tuple[int, int],
    _imported: tuple[tuple[Path, tuple[int, int]], ...],
) -> str:
    return sha256_bytes(_Writer(root, without).plain(_tree(path, _changed)).encode())


def content_digest(path: Path, root: Path = ROOT) -> str:
    """Return the sha256 of a file's normalised syntax tree without its imports of the project."""
    return _content_digest(path, root, changed(path))


@functools.lru_cache(maxsize=1024)
def _content_digest(path: Path, root: Path, _changed: tuple[int, int]) -> str:
    return sha256_bytes(_Writer(root, None).plain(_tree(path, _changed)).encode())


class _Writer:
    """Writes a syntax tree as text, equal on every version of Python, without code that affects no number.

    Left out are docstrings, annotations, messages, the fields of Settings and names of modules. Values of settings are
    in keys by themselves, and their defaults never change (tests/golden/defaults.json).
    """

    def __init__(self, root: Path, without: frozenset[Path] | None) -> None:
        self.root = root
        self.without = without  # None: leave out all imports of the project

    def text(self, node: ast.AST) -> str | None:
        """Return the text of a node; None where it is left out."""
        special = SPECIAL.get(type(node))
        return self.plain(node) if special is None else special(self, node)

    def plain(self, node: ast.AST) -> str:
        """Return the name of a node and its fields, without those that are empty."""
        fields = [
            f"{name}={value}"
            for name in node._fields
            if name not in NOT_WRITTEN and (value := self.value(getattr(node, name, None))) is not None
        ]
        return f"{type(node).__name__}({','.join(fields)})"

    def value(self, value: Any) -> str | None:
        """Return the text of a field; None where it is empty or all of it is left out."""
        if isinstance(value, ast.AST):
            return self.text(value)
        if not isinstance(value, list):
            return None if value is None else repr(value)
        texts: list[str] = []
        for one in value:
            if isinstance(one, ast.Import | ast.ImportFrom):
                texts += self.imports(one)
            elif not isinstance(one, ast.AST):
                texts.append(repr(one))
            elif (text := self.text(one)) is not None:
                texts.append(text)
        return f"[{','.join(texts)}]" if texts else None

    def expression(self, node: ast.Expr) -> str | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("warnings.warn", "print"):
            return None
        return self.plain(node)

    def settings(self, node: ast.ClassDef) -> str:
        if node.name != "Settings":
            return self.plain(node)
        return self.plain(_with(node, body=[one for one in node.body if not isinstance(one, ast.AnnAssign)]))

    def annotated(self, node: ast.AnnAssign) -> str | None:
        if isinstance(node.target, ast.Name) and node.target.id == "SIZES":
            return None  # planning replaces a size by its settings, which are in keys by themselves
        if node.value is None:
            return None if isinstance(node.target, ast.Name) else self.plain(ast.Expr(node.target))
        return self.plain(ast.Assign([node.target], node.value))

    def raised(self, node: ast.Raise) -> str:
        return self.plain(ast.Raise(node.exc.func if isinstance(node.exc, ast.Call) else node.exc, None))

    def asserted(self, node: ast.Assert) -> str:
        return self.plain(ast.Assert(node.test, None))

    def condition(self, node: ast.If) -> str | None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or test.startswith("__name__ == "):
            return None
        return self.plain(node)

    def imports(self, node: ast.Import | ast.ImportFrom) -> list[str]:
        """Return one statement for each module; `import a.b as c` of the project: the content of a.b, and c."""
        if isinstance(node, ast.Import):
            found = [self._imported(alias.name, [ast.alias("", alias.asname)], alias) for alias in node.names]
            return [one for one in found if one]
        module = node.module or ""
        if not _is_own(module, self.root):
            return [self.plain(node)]
        found = []
        for alias in node.names:
            # The name is a module of the package, or a name within the module.
            inner = module_file(f"{module}.{alias.name}", self.root)
            name, names = (f"{module}.{alias.name}", [ast.alias("", alias.asname)]) if inner else (module, [alias])
            found.append(self._imported(name, names, None))
        return [one for one in found if one]

    def _imported(self, name: str, names: list[ast.alias], foreign: ast.alias | None) -> str | None:
        file = module_file(name, self.root)
        if not _is_own(name, self.root):
            return self.plain(ast.Import([foreign] if foreign else []))
        if self.without is None or file is None or file in self.without:
            return None
        return self.plain(ast.ImportFrom(content_digest(file, self.root), names, 0))


SPECIAL: dict[type[ast.AST], Callable[[_Writer, Any], str | None]] = {
    ast.Expr: _Writer.expression,
    ast.ClassDef: _Writer.settings,
    ast.AnnAssign: _Writer.annotated,
    ast.Raise: _Writer.raised,
    ast.Assert: _Writer.asserted,
    ast.If: _Writer.condition,
}


def _with(node: ast.ClassDef, body: list[ast.stmt]) -> ast.ClassDef:
    """Return a class with another body."""
    copied = copy.copy(node)
    copied.body = body
    return copied


def _is_own(module: str, root: Path) -> bool:
    top = module.split(".")[0]
    return bool(top) and (module_file(top, root) is not None or (root / top).is_dir())
