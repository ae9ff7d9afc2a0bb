"""data.manifest.json and the raw data that it vouches for.

The manifest is committed; the data is not. It has, for each data set, the kind (text or image), the task (one label
a row or several), classes, source, licence, the fixed splits, and of each file in data/NAME its rows, size and sha256.
Each time a data set is opened its bytes are checked against it, because DVC accepts a corrupt cache object and an edit
of equal size and time without a word.

Shape legend: N rows, H x W x C an image, K classes.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from storage.errors import InputError, nearest, refuse_unknown
from storage.files import read_json, sha256_file, write_json
from storage.locks import file_lock
from storage.prepared import SPLITS

if TYPE_CHECKING:
    import pandas

SCHEMA = 1
KINDS = ("text", "image")
TASKS = ("single-label", "multi-label")
DATA_DIRECTORY = Path("data")
MANIFEST_PATH = Path("data.manifest.json")
DOCUMENTS, IMAGES, LABELS, SPLIT = "documents.jsonl", "images.npy", "labels.npy", "split.npy"


class Document(NamedTuple):
    """One row of a text data set. ``labels`` are class numbers: exactly one where the task is single-label."""

    id: str
    labels: tuple[int, ...]
    split: str
    text: str


@dataclass(frozen=True)
class FileEntry:
    """What the manifest knows of one file: its sha256, its size in bytes and its rows."""

    sha256: str
    bytes: int
    rows: int


@dataclass(frozen=True)
class DataSetEntry:
    """What the manifest knows of one data set.

    version   hex sha256 of the content, whatever the order of the rows
    splits    rows in each of train, validation and test
    packages  for data made of installed packages: the version of each
    leaks     texts or images that stand in two splits: {"exact"|"normalised": {"train-test": count, ...}}
    dropped   rows of the source that were left out: {why: count}
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

    @classmethod
    def from_json(cls, value: Mapping[str, Any], where: str) -> "DataSetEntry":
        """Read an entry; InputError names ``where`` when a field is unknown, missing or not one of its choices."""
        if not isinstance(value, Mapping):
            raise InputError(f"{where} is no mapping: restore the file from git")
        known = [about.name for about in fields(cls)]
        refuse_unknown(value, known, where)
        missing = [name for name in known[:8] if name not in value]
        if missing:
            raise InputError(f"{where} has no '{missing[0]}': restore the file from git")
        refuse_unknown([value["kind"]], KINDS, f"{where}, kind")
        refuse_unknown([value["task"]], TASKS, f"{where}, task")
        for name, kind in (("classes", (list, tuple)), ("files", dict), ("splits", dict)):
            if not isinstance(value[name], kind) or not value[name]:
                raise InputError(f"{where}: '{name}' is {value[name]!r}: restore the file from git")
        try:
            files = {name: FileEntry(**about) for name, about in value["files"].items()}
        except TypeError:
            raise InputError(
                f"{where}: each of its files has sha256, bytes and rows: restore the file from git"
            ) from None
        return cls(**{**value, "classes": tuple(value["classes"]), "files": files})

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        return {key: kept for key, kept in value.items() if kept or key not in ("packages", "leaks", "dropped")}

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
        """Write the manifest by rename, keys sorted: equal entries give equal bytes."""
        entries = {name: entry.to_json() for name, entry in self.datasets.items()}
        write_json(self.path, {"schema": SCHEMA, "datasets": entries})

    def entry(self, name: str) -> DataSetEntry:
        """The entry of ``name``; InputError names the command that makes it, or the nearest data set there is."""
        if name not in self.datasets:
            if Path(__file__).with_name("sources").joinpath(f"{name}.py").is_file():
                raise InputError(f"data set '{name}' is not here yet: run `reread data {name}`")
            known = nearest(name, self.datasets) if self.datasets else "it has none yet, run 'make data'"
            raise InputError(f"no data set '{name}' in {self.path}: {known}")
        return self.datasets[name]


def record(name: str, entry: DataSetEntry, manifest_path: Path = MANIFEST_PATH) -> None:
    """Put ``entry`` into the manifest under ``name``, under a lock so that two writers lose nothing."""
    manifest_path = Path(manifest_path)
    with file_lock(manifest_path.parent / ".locks" / f"{manifest_path.name}.lock"):
        datasets = Manifest.load(manifest_path).datasets
        Manifest({**datasets, name: entry}, manifest_path).save()


def encode_labels(labels: Sequence[Sequence[int]], task: str, class_count: int) -> np.ndarray:
    """Class numbers a row -> int32 [N] (single-label) or uint8 [N, K] of zeros and ones (multi-label)."""
    if task == "single-label":
        return np.array([row[0] for row in labels], dtype=np.int32)
    encoded = np.zeros((len(labels), class_count), dtype=np.uint8)
    for number, row in enumerate(labels):
        encoded[number, list(row)] = 1
    return encoded


def check_corpus(labels: np.ndarray, entry: DataSetEntry, where: Path | str) -> None:
    """Raise InputError where there is no row, a split is empty, or only one class occurs.

    ``labels`` as encode_labels makes them.
    """
    present = len(np.unique(labels)) if entry.task == "single-label" else len(entry.classes)
    check_census(len(labels), present, entry, where)


def check_census(rows: int, classes: int, entry: DataSetEntry, where: Path | str) -> None:
    """As check_corpus, of the number of rows and of the classes that occur in them."""
    if rows == 0:
        raise InputError(f"{where} has no rows: a data set needs rows in {', '.join(SPLITS)}")
    if classes < 2:
        raise InputError(f"{where} has rows of one class alone: nothing can be learned, give it rows of two or more")
    for split in SPLITS:
        if not entry.splits.get(split):
            raise InputError(f"{where} has no rows in split '{split}': each of {', '.join(SPLITS)} needs some")


@dataclass(frozen=True)
class TextDataSet:
    """An opened text data set, its bytes checked against the manifest."""

    name: str
    directory: Path
    entry: DataSetEntry

    def documents(self) -> Iterator[Document]:
        """Read the documents one by one, in the order of the file.

        InputError names the line that is not UTF-8, not JSON, empty, in no split or with a label out of range.
        """
        path = self.directory / DOCUMENTS
        # A file read as bytes breaks at \n alone: U+2028 and the like may stand in a text.
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                yield parse_document(line, self.entry, f"{path}, line {number}")

    def frame(self) -> "pandas.DataFrame":
        """All documents: columns id (str), labels (tuple of class numbers), split (str), text (str)."""
        # Here, since it is slow to import and the processes that prepare do without it.
        import pandas

        frame = pandas.DataFrame(self.documents(), columns=list(Document._fields))
        labels = encode_labels(frame["labels"].tolist(), self.entry.task, len(self.entry.classes))
        check_corpus(labels, self.entry, self.directory / DOCUMENTS)
        return frame


@dataclass(frozen=True)
class ImageDataSet:
    """An opened image data set, memory-mapped, its bytes checked against the manifest.

    images uint8 [N, H, W, C]; labels int32 [N] (single-label) or uint8 [N, K] (multi-label);
    split uint8 [N]: 0 train, 1 validation, 2 test (the order of SPLITS).
    """

    name: str
    directory: Path
    entry: DataSetEntry
    images: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    split: np.ndarray = field(repr=False)


def parse_document(line: bytes, entry: DataSetEntry, where: str) -> Document:
    """Read one line of documents.jsonl; InputError says ``where`` and what is wrong with it."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: invalid UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None
    if not isinstance(row, dict) or set(row) != set(Document._fields):
        raise InputError(f"{where}: a document has exactly the fields {', '.join(Document._fields)}")
    if not (isinstance(row["id"], str) and isinstance(row["labels"], list) and isinstance(row["text"], str)):
        raise InputError(f"{where}: id and text are strings and labels is a list")
    if any("\ud800" <= character <= "\udfff" for character in row["id"]):
        raise InputError(f"{where}: the id {row['id']!r} holds a character that UTF-8 has not: give it another")
    document = Document(row["id"], tuple(row["labels"]), row["split"], row["text"])
    check_document(document, entry.task, len(entry.classes), where)
    return document


def check_document(document: Document, task: str, class_count: int, where: str) -> None:
    """Raise InputError where the document is empty, in no split, or has a label that is no class number."""
    if not document.text.strip():
        raise InputError(f"{where}: document '{document.id}' is empty: remove it or give it a text")
    if document.split not in SPLITS:
        raise InputError(
            f"{where}: split '{document.split}' of document '{document.id}' is none of {', '.join(SPLITS)}"
        )
    if task == "single-label" and len(document.labels) != 1:
        raise InputError(f"{where}: document '{document.id}' has {len(document.labels)} labels, the task allows one")
    for label in document.labels:
        if type(label) is not int or not 0 <= label < class_count:
            raise InputError(
                f"{where}: label {label!r} of document '{document.id}' is no class number (0 to {class_count - 1})"
            )


def check_images(
    images: np.ndarray, labels: np.ndarray, split: np.ndarray, task: str, classes: int, where: Path
) -> None:
    """Raise InputError where a shape, dtype, label or split is not what ImageDataSet says."""
    rows = len(images)
    shape, dtype, highest = (
        ((rows,), np.int32, classes - 1) if task == "single-label" else ((rows, classes), np.uint8, 1)
    )
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"{where / IMAGES}: images are uint8 [N, H, W, C], got {images.dtype} {list(images.shape)}")
    if labels.dtype != dtype or labels.shape != shape:
        raise InputError(
            f"{where / LABELS}: labels are {np.dtype(dtype)} {list(shape)}, got {labels.dtype} {list(labels.shape)}"
        )
    if split.dtype != np.uint8 or split.shape != (rows,):
        raise InputError(f"{where / SPLIT}: splits are uint8 [{rows}], got {split.dtype} {list(split.shape)}")
    if rows and (labels.min() < 0 or labels.max() > highest):
        raise InputError(f"{where / LABELS}: a label is outside 0 to {highest}")
    if rows and split.max() >= len(SPLITS):
        raise InputError(f"{where / SPLIT}: a split is outside 0 to {len(SPLITS) - 1} ({', '.join(SPLITS)})")


def verify_files(directory: Path, entry: DataSetEntry) -> None:
    """Check each file of data/NAME against the manifest: InputError names the one that is missing or changed."""
    directory = Path(directory)
    if not directory.is_dir():
        raise InputError(f"{directory} is missing: run 'make data' to make it")
    for name, about in entry.files.items():
        path = directory / name
        if not path.is_file():
            raise InputError(f"{path} is missing: remove {directory} and run 'make data' to make it anew")
        if path.stat().st_size != about.bytes or sha256_file(path) != about.sha256:
            raise InputError(
                f"{path} is not the file that the manifest names (sha256 {about.sha256[:12]}…): "
                f"remove {directory} and run 'make data' to make it anew"
            )


def load_array(path: Path) -> np.ndarray:
    """Open an .npy file memory-mapped; InputError when it is none, or holds pickled objects."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{path} is not a plain .npy array ({error})") from None


def open_data_set(
    name: str, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH
) -> TextDataSet | ImageDataSet:
    """Open data/NAME, the sha256 of each file checked against the manifest. InputError says what to do."""
    entry = Manifest.load(manifest_path).entry(name)
    directory = Path(data_directory) / name
    verify_files(directory, entry)
    if entry.kind == "text":
        return TextDataSet(name, directory, entry)
    images, labels, split = (load_array(directory / file) for file in (IMAGES, LABELS, SPLIT))
    check_images(images, labels, split, entry.task, len(entry.classes), directory)
    check_corpus(labels, entry, directory)
    return ImageDataSet(name, directory, entry, images, labels, split)
