"""data.manifest.json, and the raw data whose bytes it records.

The manifest is committed; the data is not. An entry has the kind, the task (one label per row or several), classes,
source, licence and the fixed splits. For each file of data/NAME it has the rows, size and sha256. Each time a data
set is opened its bytes are checked against the manifest: DVC accepts a corrupt cache object, and an edit of equal size
and time, without a warning.

Shape legend: N rows, n of them, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from reread import goals, kinds
from reread.preprocessing.sources import SOURCES, how_to_make
from reread.storage.errors import InputError, nearest, refuse_unknown
from reread.storage.files import read_json, sha256_file, write_json
from reread.storage.locks import file_lock
from reread.storage.prepared import SPLITS, Prepared

SCHEMA = 1
DATA_DIRECTORY = Path("data")
MANIFEST_PATH = Path("data.manifest.json")
STORED = "stored"


@dataclass(frozen=True)
class FileEntry:
    """One file: its sha256, its size in bytes and its rows."""

    sha256: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class DataSetEntry:
    """One data set.

    version   hex sha256 of the content, whatever the order of the rows
    splits    rows in each of train, validation and test
    packages  for data made of installed packages: the version of each
    leaks     rows that two splits share: {"exact"|"normalised": {"train-test": count, ...}}
    dropped   rows of the source that were left out: {why: count}
    groups    where each row's group is found: "stored" beside the row, or the name of the source that derives it from
              the row; "" where no groups are known
    """

    kind: str
    task: str
    classes: tuple[str, ...]
    source: str
    licence: str
    version: str
    files: Mapping[str, FileEntry]
    splits: Mapping[str, int]
    packages: Mapping[str, str] = field(default_factory=dict)
    leaks: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    groups: str = ""

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> "DataSetEntry":
        """Read an entry; InputError names ``where`` when a field is unknown, missing or not one of its choices."""
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is not a mapping: restore the file from git")
        known = [about.name for about in fields(cls)]
        refuse_unknown(value, known, where)
        missing = [name for name in known[:8] if name not in value]
        if missing:
            raise InputError(f"{where} has no '{missing[0]}': restore the file from git")
        refuse_unknown([value["kind"]], kinds.available(), f"{where}, kind")
        refuse_unknown([value["task"]], goals.available(), f"{where}, task")
        refuse_unknown([value.get("groups") or STORED], [STORED, *SOURCES.available()], f"{where}, groups")
        for name, expected in (("classes", (list, tuple)), ("files", dict), ("splits", dict)):
            if not isinstance(value[name], expected) or not value[name]:
                raise InputError(f"{where}: '{name}' is {value[name]!r}: restore the file from git")
        try:
            files = {name: FileEntry(**about) for name, about in value["files"].items()}
        except TypeError:
            raise InputError(
                f"{where}: each of its files has sha256, bytes and rows: restore the file from git"
            ) from None
        return cls(**{**value, "classes": tuple(value["classes"]), "files": files})

    def to_json(self) -> dict[str, Any]:
        optional = ("packages", "leaks", "dropped", "groups")
        return {key: value for key, value in asdict(self).items() if value or key not in optional}

    @property
    def rows(self) -> int:
        return sum(self.splits.values())


@dataclass(frozen=True)
class Manifest:
    """The entries of data.manifest.json by data set name."""

    datasets: Mapping[str, DataSetEntry]
    path: Path = MANIFEST_PATH

    @classmethod
    def load(cls, path: Path = MANIFEST_PATH) -> "Manifest":
        """Read the manifest; one that is not there yet is empty. InputError when it is broken."""
        path = Path(path)
        if not path.exists():
            return cls({}, path)
        value = read_json(path)
        if not isinstance(value, dict) or value.get("schema") != SCHEMA or not isinstance(value.get("datasets"), dict):
            raise InputError(f"{path} is not a manifest of schema {SCHEMA}: restore it from git")
        entries = {
            name: DataSetEntry.from_json(about, f"{path}, data set '{name}'")
            for name, about in value["datasets"].items()
        }
        return cls(entries, path)

    def save(self) -> None:
        """Write the manifest by rename with sorted keys: equal entries give equal bytes."""
        entries = {name: entry.to_json() for name, entry in self.datasets.items()}
        write_json(self.path, {"schema": SCHEMA, "datasets": entries})

    def entry(self, name: str) -> DataSetEntry:
        """Return the entry of ``name``; InputError names the command that makes it, or the nearest data set."""
        if name not in self.datasets:
            if name in SOURCES:
                raise InputError(f"data set '{name}' is not here yet: run `reread data {name}`")
            known = nearest(name, self.datasets) if self.datasets else "it has none yet, run 'make data'"
            raise InputError(f"no data set '{name}' in {self.path}: {known}")
        return self.datasets[name]


def record(name: str, entry: DataSetEntry, manifest_path: Path = MANIFEST_PATH) -> None:
    """Add or replace the manifest's entry ``name``, under a lock so that two writers lose nothing."""
    manifest_path = Path(manifest_path)
    with file_lock(manifest_path.parent / ".locks" / f"{manifest_path.name}.lock"):
        datasets = Manifest.load(manifest_path).datasets
        Manifest({**datasets, name: entry}, manifest_path).save()


def forget(name: str, manifest_path: Path = MANIFEST_PATH) -> None:
    """Remove the manifest's entry ``name``, under the lock of ``record``; one that is gone already is no error."""
    manifest_path = Path(manifest_path)
    with file_lock(manifest_path.parent / ".locks" / f"{manifest_path.name}.lock"):
        datasets = Manifest.load(manifest_path).datasets
        Manifest({other: entry for other, entry in datasets.items() if other != name}, manifest_path).save()


def encode_labels(labels: Sequence[Sequence[int]], task: str, class_count: int) -> np.ndarray:
    """Encode each row's class numbers as int32 [N] (single-label) or uint8 [N, K] of zeros and ones (multi-label), or
    what its task's goal makes of it."""
    if goals.beyond_labels(task):
        return goals.goal(task).targets(labels, class_count)
    if task == "single-label":
        return np.array([row[0] for row in labels], dtype=np.int32)
    encoded = np.zeros((len(labels), class_count), dtype=np.uint8)
    for number, row in enumerate(labels):
        encoded[number, list(row)] = 1
    return encoded


def check_corpus(labels: np.ndarray, entry: DataSetEntry, where: Path | str) -> None:
    """Raise InputError where there is no row, a split is empty, or only one class occurs.

    ``labels`` as encode_labels returns them.
    """
    present = len(entry.classes) if entry.task == "multi-label" else len(np.unique(labels))
    check_census(len(labels), present, entry.splits, where)


def check_census(rows: int, classes: int, splits: Mapping[str, int], where: Path | str) -> None:
    """Do as check_corpus does, with the number of rows, of the classes that occur, and of the rows of each split."""
    if rows == 0:
        raise InputError(f"{where} has no rows: a data set needs rows in {', '.join(SPLITS)}")
    if classes < 2:
        raise InputError(f"{where} has rows of only one class: nothing can be learned, give it rows of two or more")
    for split in SPLITS:
        if not splits.get(split):
            counts = ", ".join(f"{name} {splits.get(name, 0)}" for name in SPLITS)
            raise InputError(
                f"{where} has no rows in split '{split}' ({counts}): give more rows or, where a column names splits, "
                "rows of each"
            )


def verify_files(directory: Path, entry: DataSetEntry) -> None:
    """Check each file of data/NAME against the manifest: InputError names the one that is missing or changed."""
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory} is missing: {how_to_make(directory.name)}")
    for name, about in entry.files.items():
        path = directory / name
        if not path.is_file():
            raise InputError(f"{path} is missing: remove {directory} and {how_to_make(directory.name)}")
        if path.stat().st_size != about.bytes or sha256_file(path) != about.sha256:
            raise InputError(
                f"{path} is not the file that the manifest names: its sha256 is {sha256_file(path)[:12]}…, and "
                f"{about.sha256[:12]}… is expected. It was changed, or a command that replaced it was killed: remove "
                f"{directory} and {how_to_make(directory.name)}"
            )


def unlisted(directory: Path, manifest_path: Path = MANIFEST_PATH) -> str:
    """Return a line on a data set's folder that the manifest does not name, with what to do."""
    lost = f"restore {manifest_path} from git, or " if not Path(manifest_path).exists() else ""
    return f"{directory} is there but not in {manifest_path}: {lost}remove the folder and run again"


def open_data_set(
    name: str, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH
) -> kinds.RawDataSet:
    """Open data/NAME and check the sha256 of each file against the manifest. InputError says what to do."""
    entry = Manifest.load(manifest_path).entry(name)
    directory = Path(data_directory) / name
    verify_files(directory, entry)
    return kinds.load(kinds.kind(entry.kind).open_raw)(name, directory, entry)


def load_raw_rows(
    prepared: Prepared,
    splits: Sequence[str],
    data_directory: Path = DATA_DIRECTORY,
    manifest_path: Path = MANIFEST_PATH,
) -> dict[str, Any]:
    """Return the rows of ``prepared`` as they were before preparation, by split and in its order: texts or images.

    InputError where the raw data is missing, is not what the manifest names, or was replaced since the preparation.
    """
    name = prepared.description["name"]
    data = open_data_set(name, data_directory, manifest_path)
    if data.entry.version != prepared.description["data_version"]:
        raise InputError(
            f"{prepared.directory} was prepared of another version of data set '{name}' than "
            f"{Path(data_directory) / name} has: run again, it will be prepared of this one"
        )
    indices = {split: prepared.arrays["raw_indices"][prepared.rows(split)].tolist() for split in splits}
    rows = data.read([index for of_split in indices.values() for index in of_split])
    stops = np.cumsum([len(of_split) for of_split in indices.values()]).tolist()
    return {split: rows[stop - len(indices[split]) : stop] for split, stop in zip(indices, stops, strict=True)}
