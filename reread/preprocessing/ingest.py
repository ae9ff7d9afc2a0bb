"""Sources -> data/NAME: written beside it, checked against the manifest, and put in place by rename."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from reread import goals
from reread.kinds import RawDataSet
from reread.preprocessing.download import find_archive
from reread.preprocessing.manifest import (
    DATA_DIRECTORY,
    MANIFEST_PATH,
    DataSetEntry,
    Manifest,
    open_data_set,
    record,
    unlisted,
    verify_files,
)
from reread.preprocessing.raw import write_rows
from reread.preprocessing.sources import SOURCES
from reread.storage.errors import InputError
from reread.storage.files import published_directory
from reread.storage.prepared import SPLITS

ARCHIVES_DIRECTORY = Path("archives")


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

    Data that is there and matches is returned at once, unless ``accept_new_version``: then its rows are read again. A
    data set that the user added is only checked. Archives come from the folder ``mirror``, or else from their URLs into
    ``archives_directory``. ``progress`` gets a line per step.

    InputError for an unknown name, data that was edited, an archive that is not the published one, and content that
    differs from the manifest (unless ``accept_new_version``). Then nothing in data/ has changed.
    """
    known = Manifest.load(manifest_path).datasets.get(name)
    if known and name not in SOURCES:
        # Added by reread.preprocessing.raw.add_data_set: there is no source to make it from.
        verify_files(Path(data_directory) / name, known)
        return known
    source = SOURCES.module(name)
    directory = Path(data_directory) / name
    present = None
    if directory.exists():
        if known is None:
            raise InputError(unlisted(directory, manifest_path))
        verify_files(directory, known)
        if not accept_new_version and not changed_packages(source, known):
            return known
        present = open_data_set(name, data_directory, manifest_path)
    rows = read_rows(name, source, Path(archives_directory), mirror, progress)
    with published_directory(directory, replace=True) as working:
        entry, _ = write_rows(name, working, rows)
        published_version = getattr(source, "VERSION", entry.version)
        if entry.version != published_version and not accept_new_version:
            raise InputError(
                f"the archive of {name} has other content than the published one (digest {entry.version[:12]}…, "
                f"published {published_version[:12]}…): remove it and download it again"
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
) -> Any:
    """Return the rows that ``source`` makes, of its archives or of the files that it finds where it has some."""
    if hasattr(source, "find"):
        return source.rows(source.find(Path(mirror) / name if mirror else None), progress)
    if not hasattr(source, "ARCHIVES"):
        return source.rows(progress)
    archives = [find_archive(archive, name, archives_directory, mirror, progress) for archive in source.ARCHIVES]
    return source.rows(archives, progress)


def changed_packages(source: ModuleType, known: DataSetEntry) -> dict[str, str]:
    """Return {package: "old -> new"} where the installed version is not the one that the data was made of."""
    installed: Mapping[str, str] = source.installed_versions() if known.packages else {}
    return {
        package: f"{version} -> {installed[package]}"
        for package, version in known.packages.items()
        if installed.get(package, version) != version
    }


def describe_difference(known: DataSetEntry, entry: DataSetEntry, present: RawDataSet | None, rows: Any) -> str:
    """Return what changed between two versions: packages, files and rows (in detail where the old data is there)."""
    parts = [
        f"{package} {known.packages.get(package, 'none')} -> {version}"
        for package, version in entry.packages.items()
        if known.packages.get(package) != version
    ]
    parts += [f"{name} has another sha256" for name, about in entry.files.items() if known.files.get(name) != about]
    parts.append(present.changes(rows) if present else f"rows {known.rows} -> {entry.rows}")
    return ", ".join(parts)


def data_card(data: RawDataSet) -> str:
    """Return a data set's card in markdown: source, licence, rows per class and split, groups, and the leak check."""
    entry, groups, counts = data.entry, data.groups(), class_counts(data)
    classes = [[label, *row] for label, row in zip(entry.classes, counts, strict=True)]
    pairs = list(next(iter(entry.leaks.values()), {}))
    lines = [
        f"# {data.name}",
        "",
        f"- Source: {entry.source}",
        f"- Licence: {entry.licence}",
        f"- Kind: {entry.kind}, {entry.task}, {outputs(entry)}, {entry.rows} rows",
        f"- Version: {entry.version} (sha256 of the content, whatever its order)",
        *([f"- Groups: {len(groups[1])}, none of them in two splits"] if groups else []),
        *(f"- Made of: {package} {version}" for package, version in entry.packages.items()),
        *(f"- Left out: {count} rows, {why}" for why, count in entry.dropped.items()),
        "",
        *table(["class", *SPLITS], [*classes, ["all rows", *(entry.splits[split] for split in SPLITS)]]),
        "",
        "Leak check: distinct rows that two splits share. Normalised: text in lower case without punctuation, or "
        "pixels stretched to the full range.",
        "",
        *table(["compared", *pairs], [[how, *counts.values()] for how, counts in entry.leaks.items()]),
    ]
    return "\n".join(lines) + "\n"


def sizes(entry: DataSetEntry) -> str:
    """Say in a line how large a data set is: rows by split, classes, and its version."""
    rows = ", ".join(f"{entry.splits[split]} {split}" for split in SPLITS)
    return f"{rows} rows, {outputs(entry)}, version {entry.version[:12]}"


def outputs(entry: DataSetEntry) -> str:
    """Say what is asked of a row: "9 classes", the number's name, or "32 outputs"."""
    if goals.beyond_labels(entry.task):
        return entry.classes[0] if len(entry.classes) == 1 else f"{len(entry.classes)} outputs"
    return f"{len(entry.classes)} classes"


def class_counts(data: RawDataSet) -> np.ndarray:
    """Return how many rows of each split have each class, int [K, 3]."""
    labels, several = data.labels, data.entry.task == "multi-label"
    if goals.beyond_labels(data.entry.task):
        return np.tile(np.bincount(data.split, minlength=len(SPLITS)), (len(data.entry.classes), 1))
    member = labels == 1 if several else labels[:, None] == np.arange(len(data.entry.classes))
    return np.stack([member[data.split == number].sum(axis=0) for number in range(len(SPLITS))], axis=1)


def absent_classes(data: RawDataSet) -> list[str]:
    """Return a line per split in which some classes have no row, with their names."""
    return absent(data.entry.classes, class_counts(data))


def absent(classes: Sequence[str], counts: np.ndarray) -> list[str]:
    """Do as absent_classes does, by ``counts``: the rows of each class in each split, int [K, 3]."""
    of_split = [(split, np.array(classes)[counts[:, number] == 0]) for number, split in enumerate(SPLITS)]
    return [f"no {split} row has the label {', '.join(names)}" for split, names in of_split if len(names)]


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a markdown table; all columns but the first are numbers."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, marks, *rows)]
