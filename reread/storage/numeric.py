"""The digest of the source that computes something: keys contain it.

It is a digest of normalised syntax trees: of all that some modules contain, and of each definition of other files that
they reach by its name, through any number of imports. A statement that defines nothing runs at the import of its file,
and so belongs to it. The digest changes with a constant, an operation or another import. These do not change it:

- docstrings, comments, positions, annotations, and the text of an exception or a warning
- a line that refuses test rows whose read is not in the ledger (reread/storage/ledger.py)
- a statement of CUDA source that only tells or refuses, and the header that defines these (cuda_ext/common/refuse.cuh)
- a new field of a Settings class, a network's named SIZES, and its DEBUG size, which tests alone use
- the name or place of a file, a new file, and a definition that nothing of these reaches

A module of an installed package is part of it by the version and the files of the package. Those of TORCH are not: the
versions of torch and numpy stand beside the digest in each key, and safetensors computes nothing. A package that one of
the ``modules`` is from, where that is outside of the project, is read as the project is.
"""

import contextlib
import functools
import importlib.metadata
import importlib.util
import itertools
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reread.storage.digests import current_sha256
from reread.storage.errors import InputError
from reread.storage.files import canonical_json, sha256_bytes
from reread.storage.normalised import Module, Part, read
from reread.storage.source import (
    ROOT,
    closure,
    constant,
    content,
    edited,
    module_file,
    outside_packages,
    packages_and_modules,
    refuse_edited,
    root_files,
    root_of,
)

# Modules, and definitions as MODULE:NAME, that are used where something is computed and that decide no number of it:
# errors, locks, digests of files, and whether the library of kernels fits, which the machine's entry ``kernels`` says.
# tests/reread/storage/test_mutations.py trains with changes of each of them.
NOT_NUMERIC = (
    "cuda_ext.build",
    "cuda_ext.library:lacks_shared_memory",
    "cuda_ext.library:run_reference",
    "cuda_ext.library:unfit",
    "reread.runtime.gpu_lease",
    "reread.storage.digests",
    "reread.storage.errors",
    "reread.storage.files",
    "reread.storage.git",
    "reread.storage.locks",
    "reread.storage.normalised",
    "reread.storage.numeric",
    "reread.storage.run_folder",
    "reread.storage.source",
)
TORCH = ("torch", "numpy", "safetensors")
KERNELS = "cuda_ext"
COMMENT = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
# Calls that, as a statement of CUDA source, decide no number: they tell, or refuse. They are macros of a header that
# holds nothing else.
CUDA_TELLING = ("CUDA_EXT_REFUSE_UNLESS", "CUDA_EXT_REFUSE_UNLESS_BESIDE", "CUDA_EXT_TELL_IF")
CUDA_TELLING_HEADER = "../common/refuse.cuh"
CUDA_TELLING_INCLUDE = re.compile(rf'^ *# *include +"{re.escape(CUDA_TELLING_HEADER)}" *$', re.MULTILINE)
# Strings and characters are found too, so that no call is found within one.
CUDA_STRING = r'"(?:\\.|[^"\\\n])*"'
CUDA_CALL = re.compile(rf"{CUDA_STRING}|'(?:\\.|[^'\\\n])*'|\b(?:{'|'.join(CUDA_TELLING)})\s*\(")
# Of a call's arguments: strings, brackets, and what ends a statement or changes a variable.
CUDA_ARGUMENT = re.compile(rf"""{CUDA_STRING}|[][(){{}}]|[;"'\\#]|\+\+|--|(?:<<|>>)=|(?<![=!<>])=(?!=)""")
CUDA_BRACKETS = {"(": ")", "[": "]", "{": "}"}
# A line of an installed package's RECORD.
OF_CODE = re.compile(r"[^,]+\.(py|so|pyd),sha256=")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@dataclass(frozen=True)
class Numeric:
    """The source that computes something.

    digest: of all of it. files: the digest of what belongs to it of each file, by its path from the root, and of each
    package. kernels: the digest of the CUDA source of each folder of kernels that it calls.
    """

    digest: str
    files: Mapping[str, str]
    kernels: Mapping[str, str]
    paths: frozenset[Path]


def numeric_source(modules: Iterable[str], root: Path = ROOT, without: Iterable[str] = NOT_NUMERIC) -> Numeric:
    """Return the source that ``modules`` reach: MODULE is all of a file or, of a package, of its files; MODULE:NAME is
    a definition.

    It is the source that this process imported: InputError where a file has changed since, NoModule where there is
    no such module.
    """
    modules, without = tuple(modules), tuple(without)
    if root != ROOT:
        return _Reach(root, without, _outside(modules, root)).of(modules)
    source = _imported_source(modules, without)
    changed = edited(source.paths)
    if changed:
        on_disk = _Reach(root, without, _outside(modules), Path.read_bytes).of(modules)
        if on_disk.digest != source.digest:
            refuse_edited(changed)
    return source


@functools.lru_cache(maxsize=1024)
def _imported_source(modules: tuple[str, ...], without: tuple[str, ...]) -> Numeric:
    return _reach_of_imported(without, tuple(_outside(modules).items())).of(modules)


@functools.lru_cache(maxsize=64)
def _reach_of_imported(without: tuple[str, ...], outside: tuple[tuple[str, Path], ...]) -> "_Reach":
    return _Reach(ROOT, without, dict(outside))


def _outside(modules: Iterable[str], root: Path = ROOT) -> dict[str, Path]:
    """Return the packages outside of the project that ``modules`` are from, and where they are."""
    return outside_packages(_without_names(modules), root)


def _without_names(modules: Iterable[str]) -> list[str]:
    """Return the modules of ``modules``, without the name of a definition."""
    return [module.partition(":")[0] for module in modules]


def numeric_digest(modules: Iterable[str], root: Path = ROOT, without: Iterable[str] = NOT_NUMERIC) -> str:
    """Return the digest of ``numeric_source``."""
    return numeric_source(modules, root, without).digest


def numeric_files(modules: Iterable[str]) -> dict[str, str]:
    """Return the files of ``numeric_source``, to name a difference."""
    return dict(numeric_source(modules).files)


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Name the first file of two sources that differs and how many more do; "" where none does."""
    others = [name for name in sorted({**before, **after}) if before.get(name) != after.get(name)]
    return (others[0] if others else "") + (f" and {len(others) - 1} more" if len(others) > 1 else "")


# A definition (file, name), or what a file does when it is imported (file, "").
_Place = tuple[Path, str]


class _Reach:
    """Finds what modules reach in the project at ``root`` and in packages ``outside``."""

    def __init__(self, root: Path, without: tuple[str, ...], outside: Mapping[str, Path], read: Any = content) -> None:
        self.root = root
        self.outside = outside
        self.read = read
        self.modules_without = [name for name in without if ":" not in name]
        self.files_without = {module_file(name, root) for name in self.modules_without}
        pairs = (name.split(":") for name in without if ":" in name)
        self.places_without = {(module_file(module, root), name) for module, name in pairs}
        self.modules: dict[Path, Module] = {}
        # A few hundred names are looked up thousands of times.
        self._is_module = functools.cache(self._is_module_on_disk)
        self._file = functools.cache(lambda name: module_file(name, root, outside))
        self._imported = functools.cache(self._imported_files)

    def of(self, modules: Iterable[str]) -> Numeric:
        names = [name.partition(":") for name in modules]
        roots = [(file, name) for module, _, name in names for file in root_files(module, self.root, self.outside)]
        waiting = [place for file, name in roots for place in ([(file, name)] if name else self._all(file))]
        # The files of its packages run before a module of another package does.
        parents = {
            ".".join(parts[:end])
            for parts in (module.split(".") for module, _, _ in names)
            if parts[0] in self.outside
            for end in range(1, len(parts))
        }
        waiting += [(file, "") for name in parents if (file := module_file(name, self.root, self.outside))]
        imported = closure(_without_names(modules), self.root, self.modules_without, self._imported)
        called = {file for file in imported if not self._is_operation(file)}
        waiting += [(file, "") for file in called]
        lines: dict[_Place, list[str]] = {}
        packages: dict[str, str] = {}
        while waiting:
            place = waiting.pop()
            if place in lines:
                continue
            file, _ = place
            lines[place] = []
            # An operation that is registered and never called computes nothing.
            if file not in called:
                called.add(file)
                waiting.append((file, ""))
            for part in self._parts(place):
                bound = []
                for name in part.uses:
                    for address, target in self._targets(file, name):
                        if target is None:
                            packages |= {top: _package(top) for top in [address.split(".")[0]] if _is_foreign(top)}
                            bound.append(f"{name}={address}")
                        elif not self._is_left_out(target):
                            waiting += self._all(target[0]) if target[1] == "*" else [target]
                            if target[0] != file:
                                bound.append(f"{name}={self._own_digest(target)}")
                lines[place].append("\n".join([part.text, *sorted(bound)]))
        texts = [sha256_bytes(text.encode()) for each in lines.values() for text in each]
        texts += [f"{name} {about}" for name, about in packages.items()]
        digest = sha256_bytes("\n".join(sorted(texts)).encode())
        # A file's own text, without what its names are bound to: a difference names the file that was changed alone.
        files: dict[str, list[str]] = {}
        for place in lines:
            own = files.setdefault(place[0].relative_to(self._root(place[0])).as_posix(), [])
            own += [part.text for part in self._parts(place)]
        digests = {name: _digest(sorted(each)) for name, each in files.items() if each}
        digests |= {f"package {name}": about for name, about in packages.items()}
        folders = {file.parent for file, _ in lines if self._is_operation(file)}
        sources = {folder.name: _kernel_files(folder, self.read) for folder in sorted(folders)}
        flags = constant(self.root / KERNELS / "build.py", "FLAGS") if sources else ()
        kernels = {name: _digest([flags, contents]) for name, (contents, _) in sources.items() if contents}
        paths = {file for file, _ in lines} | {path for _, paths in sources.values() for path in paths}
        return Numeric(digest, digests, kernels, frozenset(paths))

    def _is_operation(self, file: Path) -> bool:
        return file.parent.parent == self.root / KERNELS

    def _is_left_out(self, place: _Place) -> bool:
        return place[0] in self.files_without or place in self.places_without

    def _all(self, file: Path) -> list[_Place]:
        return [(file, name) for name in ("", *self._module(file).definitions) if not self._is_left_out((file, name))]

    def _parts(self, place: _Place) -> tuple[Part, ...]:
        module = self._module(place[0])
        return module.definitions[place[1]] if place[1] else module.effects

    def _own_digest(self, place: _Place) -> str:
        module = self._module(place[0])
        parts = [*itertools.chain(*module.definitions.values())] if place[1] == "*" else self._parts(place)
        return _digest(sorted(part.text for part in parts))

    def _targets(self, file: Path, name: str) -> Iterator[tuple[str, _Place | None]]:
        """Yield what a dotted name means in a file: an address, and its place; None for one outside of the project."""
        base, *rest = name.split(".")
        module = self._module(file)
        if base in module.definitions:
            yield name, (file, base)
            return
        for imported in module.imports.get(base, module.imports.get("*", ())):
            yield from self._at([*imported.split("."), *rest], file)

    def _at(self, parts: list[str], importer: Path) -> Iterator[tuple[str, _Place | None]]:
        address = ".".join(parts)
        if parts[0] not in self.outside and not self._is_module(parts[0]):
            yield address, None
            return
        end = 1
        while end < len(parts) and self._is_module(".".join(parts[: end + 1])):
            end += 1
        file = self._file(".".join(parts[:end]))
        if file is None or file == importer:
            return
        if end == len(parts):
            # The module itself is passed on, or it is the package of one that is used.
            yield address, (file, "*")
            return
        module = self._module(file)
        if parts[end] == "*":  # of an import of all names
            yield address, (file, "*")
        if parts[end] in module.definitions:
            yield address, (file, parts[end])
        elif parts[end] in module.imports:
            yield from self._targets(file, ".".join(parts[end:]))
        else:
            yield address, (file, "*")

    def _is_module_on_disk(self, name: str) -> bool:
        parts = name.split(".")
        place = self.outside.get(parts[0])
        folder = (place.parent if place else self.root).joinpath(*parts)
        return self._file(name) is not None or folder.is_dir()

    def _root(self, file: Path) -> Path:
        return root_of(file, self.root, self.outside)

    def _imported_files(self, file: Path) -> set[Path]:
        """As ``imported_files``, from the names that are known already."""
        addresses = itertools.chain(*self._module(file).imports.values())
        return {path for name in packages_and_modules(addresses) if (path := self._file(name))}

    def _module(self, file: Path) -> Module:
        if file not in self.modules:
            self.modules[file] = read(file, self._root(file), self.read(file))
        return self.modules[file]


def _digest(value: Any) -> str:
    return sha256_bytes(canonical_json(value).encode())


def _kernel_files(folder: Path, read: Any) -> tuple[dict[str, str], list[Path]]:
    """Return the digests of a folder's CUDA files and of what they include, and their paths; comments are left out, and
    what only tells or refuses."""
    waiting = sorted(path for path in folder.glob("*.cu*"))
    digests: dict[Path, str] = {}
    while waiting:
        path = waiting.pop()
        if path not in digests:
            digests[path], included = _kernel_source(read(path))
            waiting += [(path.parent / name).resolve() for name in included]
    return {path.relative_to(folder.parent).as_posix(): digest for path, digest in digests.items()}, list(digests)


@functools.lru_cache(maxsize=256)
def _kernel_source(source: bytes) -> tuple[str, list[str]]:
    """Return the digest of a CUDA file without its comments and what only tells or refuses, and the files that it
    includes."""
    text = source.decode()
    code = COMMENT.sub(lambda match: match[1] or " ", text)
    code = _without_telling(CUDA_TELLING_INCLUDE.sub("", code))
    lines = (" ".join(line.split()) for line in code.splitlines())
    included = [name for name in INCLUDE.findall(text) if name != CUDA_TELLING_HEADER]
    return sha256_bytes("\n".join(filter(None, lines)).encode()), included


def _without_telling(code: str) -> str:
    """Leave out of CUDA source, without comments, each whole statement that only tells or refuses.

    It is NAME(...); behind a semicolon or a brace: behind ``if (...)`` the next statement would take its place.
    """
    kept, done = [], 0
    for call in CUDA_CALL.finditer(code):
        if call[0].endswith("(") and code[: call.start()].rstrip().endswith((";", "{", "}")):
            end = _end_of_statement(code, call.end())
            if end:
                kept.append(code[done : call.start()])
                done = end
    return "".join([*kept, code[done:]])


def _end_of_statement(code: str, begin: int) -> int | None:
    """Return where the statement ends that is a call whose arguments begin at ``begin``.

    None where it is more than that call, or where an argument is more than an expression of names, numbers and strings.
    """
    expected = [")"]
    for token in CUDA_ARGUMENT.finditer(code, begin):
        text = token[0]
        if text in CUDA_BRACKETS:
            expected.append(CUDA_BRACKETS[text])
        elif text in CUDA_BRACKETS.values():
            if text != expected.pop():
                return None
            if not expected:
                semicolon = code.find(";", token.end())
                return semicolon + 1 if semicolon >= 0 and not code[token.end() : semicolon].strip() else None
        elif len(text) < 2 or text[0] != '"' or code[token.start() - 1].isalnum():
            return None
    return None


def _is_foreign(top: str) -> bool:
    return top not in TORCH and top not in sys.stdlib_module_names


@functools.cache
def _distributions(top: str) -> list[str]:
    """Return the distributions that have a top-level package or module.

    As ``importlib.metadata.packages_distributions`` does it, which reads all files of all of them.
    """
    listed = re.compile(rf"^{re.escape(top)}(/[^,\n]*)?\.py,", re.MULTILINE)
    names = []
    for distribution in importlib.metadata.distributions():
        declared = (distribution.read_text("top_level.txt") or "").split()
        if top in declared or (not declared and listed.search(distribution.read_text("RECORD") or "")):
            names.append(distribution.metadata["Name"])
    return names


def package_version(top: str) -> str | None:
    """Return the version of a package's distribution; None where it has none, as a folder of PYTHONPATH."""
    for name in (*_distributions(top), top):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None


def _package(top: str) -> str:
    """Return the version of an installed package and the digest of its files; InputError where it is not installed.

    A package from an index is its version and its list of digests, which its installer wrote. The files of another are
    read, since they may be edited: those of a folder, a checkout or a path.
    """
    spec = importlib.util.find_spec(top)
    if spec is None:
        raise InputError(f"the code of a result imports '{top}', which is not installed here: install it")
    for name in _distributions(top):
        installed = importlib.metadata.distribution(name)
        if not installed.read_text("direct_url.json") and (record := installed.read_text("RECORD")):
            return f"{installed.version} {_digest(sorted(line for line in record.splitlines() if OF_CODE.match(line)))}"
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [path for place in places for path in place.rglob("*") if path.suffix in (".py", ".so", ".pyd")]
    if not places and spec.origin and Path(spec.origin).is_file():
        files = [Path(spec.origin)]
    return _digest(sorted([path.name, current_sha256(path)] for path in files))
