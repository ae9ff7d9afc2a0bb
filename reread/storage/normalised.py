"""Source as the keys read it: a file's statements as normalised text, with the names that each uses and its imports.

Parsing and normalising the project takes seconds. A file's result is kept in .cache/, beside the digest of what it was
made from.
"""

import ast
import atexit
import contextlib
import functools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reread.storage.files import canonical_json, sha256_bytes, write_text
from reread.storage.source import ROOT, imported_names, parsed

# Names of a network's file that no run reads: a size is replaced by its settings, which are in keys by themselves.
NOT_READ = ("DEBUG", "SIZES")
# Calls that, as a statement, decide no number: they tell, or refuse.
TELLING = ("print", "refuse_unrecorded", "warnings.warn")
# Calls whose branch is left out. It is for networks of other packages, for data sets with a tokenizer of their own, for
# tasks beyond labels or for folds: their keys have the source that it leads to, and all others do without it.
BRANCHES = ("outside.provides(", "tokenizer.asked(", "goals.beyond_labels(", "folds.asked(")
# Of a Kind what batches read: the rest are addresses, which keys follow, and words.
OF_A_KIND = ("row_array", "augmented")
# Addresses of modules that stand in code as text are read without it: moving a module into the package changes no key.
PACKAGE = "reread."
KEPT = ROOT / ".cache" / "normalised"


@dataclass(frozen=True)
class Part:
    """A top-level statement, normalised. uses: the dotted names that it reads."""

    text: str
    uses: frozenset[str]


@dataclass(frozen=True)
class Module:
    definitions: Mapping[str, tuple[Part, ...]]
    effects: tuple[Part, ...]
    imports: Mapping[str, set[str]]


@functools.lru_cache(maxsize=2048)
def read(file: Path, root: Path, source: bytes) -> Module:
    """Return the ``source`` of a file, whose package is below ``root``."""
    if root != ROOT:
        return _normalised(file, root, source)
    name, digest = file.relative_to(ROOT).as_posix(), sha256_bytes(source)
    kept = _kept()
    if kept.get(name, [None])[0] != digest:
        module = _normalised(file, root, source)
        imports = {bound: sorted(addresses) for bound, addresses in module.imports.items()}
        definitions = {bound: _as_json(parts) for bound, parts in module.definitions.items()}
        kept[name] = [digest, definitions, _as_json(module.effects), imports]
        _keep_at_exit()
        return module
    _, definitions, effects, imports = kept[name]
    return Module(
        {bound: _from_json(parts) for bound, parts in definitions.items()},
        _from_json(effects),
        {bound: set(addresses) for bound, addresses in imports.items()},
    )


def keep() -> None:
    """Write what is known, for later processes: where the project has a .cache/ that can be written.

    An installed package and a packed model have none.
    """
    if KEPT.parent.is_dir():
        with contextlib.suppress(OSError):
            write_text(_place(), canonical_json(_kept()))


@functools.cache
def _keep_at_exit() -> None:
    """Let this process ``keep`` once, however many files it had to normalise."""
    atexit.register(keep)


@functools.cache
def _place() -> Path:
    """The file of what this code makes of source, by this version of Python's ``ast``."""
    code = [sha256_bytes(Path(file).read_bytes()) for file in (__file__, sys.modules[parsed.__module__].__file__ or "")]
    return KEPT / f"{sha256_bytes(canonical_json([sys.version, code]).encode())[:16]}.json"


@functools.cache
def _kept() -> dict[str, Any]:
    try:
        kept: dict[str, Any] = json.loads(_place().read_bytes())
    except (OSError, ValueError):
        return {}
    return kept


def _as_json(parts: tuple[Part, ...]) -> list[Any]:
    return [[part.text, sorted(part.uses)] for part in parts]


def _from_json(parts: list[Any]) -> tuple[Part, ...]:
    return tuple(Part(text, frozenset(uses)) for text, uses in parts)


def _normalised(file: Path, root: Path, source: bytes) -> Module:
    tree = parsed(source, file)
    imports = imported_names(tree, file, root)
    definitions: dict[str, tuple[Part, ...]] = {}
    effects: tuple[Part, ...] = ()
    for statement in _Normalise().visit(tree).body:
        part = Part(_text(statement), frozenset(_used_names(statement)))
        names = _bound_names(statement)
        for name in names:
            if name not in NOT_READ:
                definitions[name] = (*definitions.get(name, ()), part)
        if not names:
            effects += (part,)
    return Module(definitions, effects, imports)


def _bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.Assign):
        targets = [element for target in statement.targets for element in getattr(target, "elts", [target])]
        if all(isinstance(target, ast.Name) for target in targets):
            return [target.id for target in targets]
    return []


def _used_names(node: ast.AST) -> Iterator[str]:
    """Yield each name with the attributes that are read of it: ``models.layers.kernels``."""
    chain, base = [], node
    while isinstance(base, ast.Attribute):
        chain.append(base.attr)
        base = base.value
    if isinstance(base, ast.Name):
        yield ".".join([base.id, *reversed(chain)])
    else:
        for child in ast.iter_child_nodes(base):
            yield from _used_names(child)


class _Normalise(ast.NodeTransformer):
    """Removes code that affects no number: docstrings, annotations, messages, the fields of Settings, and imports,
    which count by what is used of them.

    Values of settings are in keys by themselves, and their defaults never change (tests/golden/defaults.json).
    """

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("annotation", "returns", "type_comment", "type_params"):
            if getattr(node, name, None):
                setattr(node, name, None)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(node.value.removeprefix(PACKAGE)) if isinstance(node.value, str) else node

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant):
            return None
        if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in TELLING:
            return None
        return self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        if node.name == "Settings":
            node.body = [statement for statement in node.body if not isinstance(statement, ast.AnnAssign)]
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        if node.value is None:
            return None if isinstance(node.target, ast.Name) else ast.Expr(node.target)
        return ast.Assign([node.target], self.visit(node.value))

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if isinstance(node.func, ast.Name) and node.func.id == "Kind":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg in OF_A_KIND]
        return self.generic_visit(node)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        return ast.Raise(raised, None)

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return ast.Assert(self.visit(node.test), None)

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_If(self, node: ast.If) -> ast.AST | None:
        test = ast.unparse(node.test)
        if test in ("TYPE_CHECKING", "typing.TYPE_CHECKING") or test.startswith(("__name__ == ", *BRANCHES)):
            return None
        return self.generic_visit(node)


def _text(node: Any) -> str:
    """Return a syntax tree as text. ``ast.dump`` writes empty fields by some versions of Python and not by others."""
    if isinstance(node, ast.AST):
        values = [(name, getattr(node, name, None)) for name in node._fields if name != "kind"]
        inner = ",".join(f"{name}={_text(value)}" for name, value in values if value not in (None, []))
        return f"{type(node).__name__}({inner})"
    return f"[{','.join(map(_text, node))}]" if isinstance(node, list) else repr(node)
