"""Descriptions of functions, classes and modules from the docstrings of pinned packages; the class is the package.

The source files are found through importlib.metadata and read with ``ast``. No package is imported, so the bytes are
equal on Python 3.11 and 3.12 and on any machine with the same versions. Tests, vendored and generated code are not
read, nor torch (its files differ between builds) and the standard library (it changes with Python's patch release).

The files of a package are read in the order of the sha256 of their names until there are DOCUMENTS_PER_CLASS documents,
so that classes are nearly balanced. A document has three sentences or more. Exact and near duplicates, within a package
or across two, are dropped. Names and aliases of all packages are masked, so that the label is not in the text. A source
file is in one split, so that its functions do not leak.
"""

import ast
import contextlib
import hashlib
import importlib.metadata
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from reread.preprocessing.raw import About, split_by_quota
from reread.preprocessing.raw_text import Document, TextRows
from reread.preprocessing.sources.descriptions import count_sentences, describe
from reread.preprocessing.sources.duplicates import NearDuplicates
from reread.storage.errors import InputError

# distribution -> the folder that it installs
PACKAGES = {
    "matplotlib": "matplotlib",
    "mlflow": "mlflow",
    "networkx": "networkx",
    "pandas": "pandas",
    "prefect": "prefect",
    "scikit-learn": "sklearn",
    "scipy": "scipy",
    "sqlalchemy": "sqlalchemy",
    "sympy": "sympy",
}
DOCUMENTS_PER_CLASS = 450
LEAST_SENTENCES = 3
SHARES = {"test": 0.15, "validation": 0.15}
# The oldest supported Python: a file that it cannot parse is excluded on a newer one too.
GRAMMAR = (3, 11)

# Names of folders and files of tests, of vendored and of generated code.
LEFT_OUT = re.compile(
    r"tests?|_?testing|test_utils|test-examples|conftest|benchmarks|_?examples|demo|_?vendor(?:ed)?|_?externals?|extern"
    r"|array_api_(?:compat|extra)|cobyqa|pyprima|_antlr|protos|(?:_|db_)?migrations|versions|__config__|_?version"
)

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
INSTALL = "install requirements.lock"
MASK = "PACKAGE"
NAMES = (
    r"matplotlib|pyplot|pylab|mlflow|networkx|numpy|pandas|prefect|sci-?kit[-_ ]?learn|sklearn|scipy|sqlalchemy|sympy"
)
ALIASES = "mpl|plt|np|nx|pd|sa|sk|sp"
# The first letters alone make the search four times as fast.
MASKED = re.compile(rf"(?=[mnps])(?:{NAMES}|(?<![a-z0-9])(?:{ALIASES})(?![a-z0-9]))", re.IGNORECASE)


def rows(progress: Callable[[str], None] = lambda line: None) -> TextRows:
    """Return the corpus; ``progress`` gets a line per package."""
    seen = NearDuplicates()
    dropped: Counter[str] = Counter()
    documents: list[Document] = []
    for label, (package, folder) in enumerate(PACKAGES.items()):
        progress(f"reading docstrings {label + 1}/{len(PACKAGES)}: {package}")
        of_file: dict[str, list[tuple[str, str]]] = {}
        for name, path in source_files(package, folder):
            pairs = list(file_documents(name, path))
            kept = [(key, text) for key, text in pairs if seen.add(text)]
            dropped["exact or near duplicate"] += len(pairs) - len(kept)
            if kept:
                of_file[name] = kept
            if sum(map(len, of_file.values())) >= DOCUMENTS_PER_CLASS:
                break
        splits = split_by_quota({name: len(kept) for name, kept in of_file.items()}, SHARES)
        documents += [
            Document(key, (label,), splits[name], text) for name, kept in of_file.items() for key, text in kept
        ]
    about = About(
        classes=tuple(PACKAGES),
        source="Docstrings of installed packages, description part, names masked",
        licence="each text under the licence of its package: BSD 3-clause (networkx, pandas, scikit-learn, "
        "scipy, sympy), Matplotlib's (matplotlib), MIT (sqlalchemy), Apache 2.0 (mlflow, prefect)",
        packages=installed_versions(),
        dropped=dropped,
        groups="docstrings",
    )
    return TextRows(about, documents)


def group_of(document: Document) -> str:
    """Return the source file of a document."""
    return document.id.partition(":")[0]


def installed_versions() -> dict[str, str]:
    """Return the version of each installed package, without the part that names a build."""
    versions = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package).partition("+")[0]
    return versions


def source_files(package: str, folder: str) -> list[tuple[str, Path]]:
    """Return (name, path) of the package's own source files, in the order of the sha256 of the name (a/b/c.py)."""
    try:
        listed = importlib.metadata.distribution(package).files or ()
    except importlib.metadata.PackageNotFoundError:
        raise InputError(f"the docstring corpus is made of '{package}', which is missing: {INSTALL}") from None
    files = {}
    for file in listed:
        parts = PurePosixPath(file).with_suffix("").parts
        if file.suffix == ".py" and parts[0] == folder and not any(map(LEFT_OUT.fullmatch, parts)):
            files[PurePosixPath(file).as_posix()] = Path(file.locate())
    if not files:
        raise InputError(f"package '{package}' has no source files in {folder}/: {INSTALL}")
    return sorted(files.items(), key=lambda item: hashlib.sha256(item[0].encode()).digest())


def file_documents(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """Yield (id, text) of each docstring of a file with enough sentences; the id is the file and the qualified name."""
    with warnings.catch_warnings():
        # Invalid escapes in strings: their warning has another class in Python 3.12 than in 3.11.
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_bytes(), name, feature_version=GRAMMAR)
        except SyntaxError:
            return
    used: Counter[str] = Counter()
    for qualified_name, docstring in docstrings(tree, ""):
        text = MASKED.sub(MASK, describe(docstring))
        if count_sentences(text) >= LEAST_SENTENCES:
            used[qualified_name] += 1
            number = used[qualified_name]
            yield f"{name}:{qualified_name}" + (f"#{number}" if number > 1 else ""), text


def docstrings(node: ast.AST, qualified_name: str) -> Iterator[tuple[str, str]]:
    """Yield (qualified name, docstring) of a module, its classes and functions, in the order of the file."""
    if isinstance(node, DOCUMENTED):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield qualified_name, docstring
    for child in ast.iter_child_nodes(node):
        if isinstance(child, DOCUMENTED) and not isinstance(child, ast.Module):
            yield from docstrings(child, f"{qualified_name}.{child.name}".lstrip("."))
        elif isinstance(child, ast.stmt | ast.ExceptHandler):
            yield from docstrings(child, qualified_name)
