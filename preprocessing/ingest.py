"""Sources -> data/NAME: built beside it, checked against the manifest, and put in place by rename."""

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np

from preprocessing.download import find_archive
from preprocessing.manifest import (
    DATA_DIRECTORY,
    MANIFEST_PATH,
    SPLITS,
    DataSetEntry,
    Document,
    Manifest,
    TextDataSet,
    encode_labels,
    open_data_set,
    record,
    verify_files,
)
from preprocessing.raw import ImageRows, TextRows, write_rows
from storage.errors import InputError, refuse_unknown
from storage.files import published_directory

ARCHIVES_DIRECTORY = Path("archives")
EMBEDDED = ("digits", "docstrings")
PUBLISHED = ("cifar10", "imdb", "mnist", "movie_reviews", "newsgroups20")


def available_sources() -> tuple[str, ...]:
    """The data sets that ingest can make, one module of preprocessing/sources each; EMBEDDED need no network."""
    return EMBEDDED + PUBLISHED


def ingest(
    name: str,
    data_directory: Path = DATA_DIRECTORY,
    manifest_path: Path = MANIFEST_PATH,
    archives_directory: Path = ARCHIVES_DIRECTORY,
    mirror: Path | None = None,
    accept_new_version: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> DataSetEntry:
    """Make data/NAME and return its manifest entry, which is added where there is none.

    What is already there and matches is returned at once, and a user's own data set is checked. Archives come from the
    folder ``mirror``, or else from their URLs into ``archives_directory``. ``progress`` is told each step in a line.

    InputError, with nothing half-written and what was there untouched: an unknown name, data that was edited, an
    archive that is not the published one, or content that differs from the manifest (unless ``accept_new_version``).
    """
    known = Manifest.load(manifest_path).datasets.get(name)
    if known and name not in available_sources():
        # A user's own, added by preprocessing.raw.add_data_set: nothing here can make it, it can only be checked.
        verify_files(Path(data_directory) / name, known)
        return known
    refuse_unknown([name], available_sources(), "the data sets")
    source = importlib.import_module(f"preprocessing.sources.{name}")
    directory = Path(data_directory) / name
    present = None
    if directory.exists():
        if known is None:
            raise InputError(f"{directory} is there but not in {manifest_path}: remove the folder and run again")
        verify_files(directory, known)
        if not changed_packages(source, known):
            return known
        present = TextDataSet(name, directory, known)
    with published_directory(directory, replace=True) as working:
        rows = read_rows(name, source, Path(archives_directory), mirror, progress)
        entry = write_rows(name, working, rows)
        published_version = getattr(source, "VERSION", entry.version)
        if entry.version != published_version and not accept_new_version:
            raise InputError(
                f"the archive of {name} has other content than the published one (digest {entry.version[:12]}…, "
                f"published {published_version[:12]}…): remove it and get it anew"
            )
        if known and (entry.version, entry.files) == (known.version, known.files):
            return known
        if known:
            difference = describe_difference(known, entry, present, rows)
            if not accept_new_version:
                raise InputError(
                    f"{name} would not be what {manifest_path} names: {difference}; install the versions of "
                    "requirements.lock, or ingest it with --accept-new-version"
                )
            progress(f"{name} has a new version: {difference}")
        record(name, entry, manifest_path)
    return entry


def read_rows(
    name: str, source: ModuleType, archives_directory: Path, mirror: Path | None, progress: Callable[[str], None]
) -> TextRows | ImageRows:
    if name in EMBEDDED:
        return source.rows(progress)
    archives = [find_archive(archive, name, archives_directory, mirror, progress) for archive in source.ARCHIVES]
    return source.rows(archives, progress)


def changed_packages(source: ModuleType, known: DataSetEntry) -> dict[str, str]:
    """{package: "old -> new"} where another version is installed than the one that the data was made of."""
    installed: Mapping[str, str] = source.installed_versions() if known.packages else {}
    return {
        package: f"{version} -> {installed[package]}"
        for package, version in known.packages.items()
        if installed.get(package, version) != version
    }


def describe_difference(
    known: DataSetEntry, entry: DataSetEntry, present: TextDataSet | None, rows: TextRows | ImageRows
) -> str:
    """What changed between two versions: packages, files, and rows (one by one where the old data is there)."""
    parts = [
        f"{package} {known.packages.get(package, 'none')} -> {version}"
        for package, version in entry.packages.items()
        if known.packages.get(package) != version
    ]
    parts += [f"{name} has another sha256" for name, about in entry.files.items() if known.files.get(name) != about]
    if present and isinstance(rows, TextRows):
        old, new = by_id(present.documents()), by_id(rows.documents)
        changed = sum(old[key] != new[key] for key in old.keys() & new.keys())
        parts.append(
            f"{len(new.keys() - old.keys())} documents added, {len(old.keys() - new.keys())} removed, {changed} changed"
        )
    else:
        parts.append(f"rows {known.rows} -> {entry.rows}")
    return ", ".join(parts)


def by_id(documents: Iterable[Document]) -> dict[str, Document]:
    return {document.id: document for document in documents}


def data_card(name: str, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH) -> str:
    """A data set's card in markdown: source, licence, rows a class in each split, and the leak check."""
    data = open_data_set(name, data_directory, manifest_path)
    entry = data.entry
    if isinstance(data, TextDataSet):
        documents = list(data.documents())
        labels = encode_labels([document.labels for document in documents], entry.task, len(entry.classes))
        split = np.array([SPLITS.index(document.split) for document in documents])
    else:
        labels, split = data.labels, data.split
    member = labels[:, None] == np.arange(len(entry.classes)) if entry.task == "single-label" else labels == 1
    counts = np.stack([member[split == number].sum(axis=0) for number in range(len(SPLITS))], axis=1)
    classes = [[own, *row] for own, row in zip(entry.classes, counts, strict=True)]
    pairs = list(next(iter(entry.leaks.values()), {}))
    lines = [
        f"# {name}",
        "",
        f"- Source: {entry.source}",
        f"- Licence: {entry.licence}",
        f"- Kind: {entry.kind}, {entry.task}, {len(entry.classes)} classes, {entry.rows} rows",
        f"- Version: {entry.version} (sha256 of the content, whatever its order)",
        *(f"- Made of: {package} {version}" for package, version in entry.packages.items()),
        *(f"- Left out: {count} rows, {why}" for why, count in entry.dropped.items()),
        "",
        *table(["class", *SPLITS], [*classes, ["all rows", *(entry.splits[own] for own in SPLITS)]]),
        "",
        "Leak check: distinct rows that stand in two splits. Normalised is text in lower case without punctuation, or "
        "pixels stretched to the full range.",
        "",
        *table(["compared", *pairs], [[how, *found.values()] for how, found in entry.leaks.items()]),
    ]
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Iterable[Sequence]) -> list[str]:
    """The lines of a markdown table; all columns but the first are numbers."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, marks, *rows)]
