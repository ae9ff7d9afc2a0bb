"""Digests of the source that a result depends on, read by ``ast`` and never imported; keys contain them.

``numeric_digest`` is a digest of the normalised syntax trees of all files that some modules reach by imports. It
changes with a constant or an operation. These do not change it:

- docstrings, comments, positions, annotations, and the text of an exception or a warning
- a new field of a Settings class, and a network's named SIZES
- the name or place of a file, and a new file that none of these modules imports
"""

import ast
import functools
import os
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from storage.files import sha256_bytes, sha256_file

ROOT = Path(__file__).resolve().parent.parent
# Two threads that parse at once can fail with "AST constructor recursion depth mismatch" (CPython issue 106905). A lock
# serialises this module's threads; a failure caused by a library's thread is retried.
PARSING = threading.Lock()
ATTEMPTS = 20
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
    for node in ast.walk(parse(path)):
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
    return sha256_bytes(_text(_Normalise(root, without).visit(parse(path))).encode())


def content_digest(path: Path, root: Path = ROOT) -> str:
    """Return the sha256 of a file's normalised syntax tree without its imports of the project."""
    return _content_digest(path, root, changed(path))


@functools.lru_cache(maxsize=1024)
def _content_digest(path: Path, root: Path, _changed: tuple[int, int]) -> str:
    return sha256_bytes(_text(_Normalise(root, None).visit(parse(path))).encode())


class _Normalise(ast.NodeTransformer):
    """Removes code that affects no number: docstrings, annotations, messages, the fields of Settings, names of modules.

    Values of settings are in keys by themselves, and their defaults never change (tests/golden/defaults.json).
    """

    def __init__(self, root: Path, without: frozenset[Path] | None) -> None:
        self.root = root
        self.without = without  # None: leave out all imports of the project

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("annotation", "returns", "type_comment", "type_params"):
            if getattr(node, name, None):
                setattr(node, name, None)
        return node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("warnings.warn", "print"):
            return None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if node.name == "Settings":
            node.body = [one for one in node.body if not isinstance(one, ast.AnnAssign)]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if isinstance(node.target, ast.Name) and node.target.id == "SIZES":
            return None  # planning replaces a size by its settings, which are in keys by themselves
        if node.value is None:
            return None if isinstance(node.target, ast.Name) else ast.Expr(node.target)
        return ast.Assign([node.target], self.visit(node.value))

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(raised, None)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Assert(self.visit(node.test), None)

    def visit_Import(self, node: ast.Import) -> list[ast.AST]:
        """Return one statement for each module; `import a.b as c` of the project: the content of a.b, and c."""
        found = (self._imported(alias.name, [ast.alias("", alias.asname)], alias) for alias in node.names)
        return [one for one in found if one]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | list[ast.AST]:
        module = node.module or ""
        if not _is_own(module, self.root):
            return node
        found = []
        for alias in node.names:
            # The name is a module of the package, or a name within the module.
            inner = module_file(f"{module}.{alias.name}", self.root)
            name, names = (f"{module}.{alias.name}", [ast.alias("", alias.asname)]) if inner else (module, [alias])
            found.append(self._imported(name, names, None))
        return [one for one in found if one]

    def _imported(self, name: str, names: list[ast.alias], foreign: ast.alias | None) -> ast.AST | None:
        file = module_file(name, self.root)
        if not _is_own(name, self.root):
            return ast.Import([foreign] if foreign else [])
        if self.without is None or file is None or file in self.without:
            return None
        return ast.ImportFrom(content_digest(file, self.root), names, 0)

    def visit_If(self, node: ast.If) -> ast.AST | None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or test.startswith("__name__ == "):
            return None
        return self.generic_visit(node)


def _is_own(module: str, root: Path) -> bool:
    top = module.split(".")[0]
    return bool(top) and (module_file(top, root) is not None or (root / top).is_dir())


def _text(node: Any) -> str:
    """Return a syntax tree as text. ``ast.dump`` writes empty fields by some versions of Python and not by others."""
    if isinstance(node, ast.AST):
        values = [(name, getattr(node, name, None)) for name in node._fields if name != "kind"]
        inner = ",".join(f"{name}={_text(value)}" for name, value in values if value not in (None, []))
        return f"{type(node).__name__}({inner})"
    return f"[{','.join(map(_text, node))}]" if isinstance(node, list) else repr(node)
