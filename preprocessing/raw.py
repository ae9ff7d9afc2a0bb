"""Rows -> the files of data/NAME and their manifest entry.

Rows are written in one canonical order (by split, then by the sha256 of the row), so that equal content gives equal
bytes and an equal version, however its source was packed.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np

from preprocessing.manifest import (
    DATA_DIRECTORY,
    DOCUMENTS,
    IMAGES,
    LABELS,
    MANIFEST_PATH,
    SPLIT,
    SPLITS,
    DataSetEntry,
    Document,
    FileEntry,
    check_corpus,
    check_document,
    check_images,
    encode_labels,
    record,
)
from storage.errors import InputError
from storage.files import canonical_json, published_directory, sha256_file

WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class About:
    """What a data set is, beside its rows. ``packages`` and ``dropped`` as in DataSetEntry."""

    classes: Sequence[str]
    source: str
    licence: str
    task: str = "single-label"
    packages: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class TextRows:
    about: About
    documents: Sequence[Document]


@dataclass(frozen=True)
class ImageRows:
    """images uint8 [N, H, W, C]; labels int32 [N] or uint8 [N, K]; split uint8 [N], 0 to 2 in the order of SPLITS."""

    about: About
    images: np.ndarray
    labels: np.ndarray
    split: np.ndarray


def split_by_quota(groups: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, str]:
    """Put whole groups into splits: {group: its rows} -> {group: its split}.

    In the order of the sha256 of their names, each group goes to the first split of ``shares`` that still has room for
    all of its rows, and to train where none has. What belongs together (duplicates, one source file) makes a group.
    """
    room = {split: share * sum(groups.values()) for split, share in shares.items()}
    splits = {}
    for group in sorted(groups, key=lambda name: hashlib.sha256(name.encode()).digest()):
        split = next((split for split in room if room[split] >= groups[group]), "train")
        if split in room:
            room[split] -= groups[group]
        splits[group] = split
    return splits


def held_out(content: bytes, one_in: int = 10) -> bool:
    """Whether a row of a published training split belongs to validation: one in ten, chosen by its content alone."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % one_in == 0


def published_splits(images: np.ndarray, train_rows: int) -> np.ndarray:
    """uint8 [N]: the first ``train_rows`` images are the published training split, and some of them validation."""
    numbers = [int(held_out(image.tobytes())) for image in images[:train_rows]]
    return np.array(numbers + [SPLITS.index("test")] * (len(images) - train_rows), dtype=np.uint8)


def count_leaks(contents: Iterable[bytes], splits: Iterable[str]) -> dict[str, int]:
    """Count the distinct contents that stand in two splits: {"train-test": 123, ...}. Their digests are held alone."""
    of_split: dict[str, set[bytes]] = {split: set() for split in SPLITS}
    for content, split in zip(contents, splits, strict=True):
        of_split[split].add(hashlib.sha256(content).digest())
    return {f"{one}-{other}": len(of_split[one] & of_split[other]) for one, other in combinations(SPLITS, 2)}


def normalised_text(text: str) -> str:
    """The words of a text in lower case, without punctuation and line breaks."""
    return " ".join(WORD.findall(text.lower()))


def normalised_pixels(image: np.ndarray) -> bytes:
    """The pixels of a uint8 image stretched to 0..255, so that brighter or flatter copies are equal."""
    low, high = int(image.min()), int(image.max())
    return ((image.astype(np.int32) - low) * 255 // max(high - low, 1)).astype(np.uint8).tobytes()


def content_version(about: About, row_digests: Iterable[bytes]) -> str:
    """Hex sha256 of classes, task and the sorted digests of all rows: equal for equal content in any order."""
    digest = hashlib.sha256(canonical_json([list(about.classes), about.task]).encode())
    for row in sorted(row_digests):
        digest.update(row)
    return digest.hexdigest()


def write_text(name: str, directory: Path, rows: TextRows) -> DataSetEntry:
    """Write documents.jsonl into ``directory``. InputError for an empty corpus or document, or a bad label.

    The canonical order asks for all rows at once: they stand in memory, as texts and as lines.
    """
    about = rows.about
    ordered = []
    for number, document in enumerate(rows.documents, 1):
        check_document(document, about.task, len(about.classes), f"{name}, row {number}")
        try:
            line = canonical_json(document._asdict()).encode()
        except UnicodeEncodeError:
            raise InputError(
                f"{name}, row {number}: document '{document.id}' holds a character that UTF-8 has not"
            ) from None
        ordered.append((SPLITS.index(document.split), hashlib.sha256(line).digest(), line, document))
    ordered.sort(key=lambda row: row[:2])
    documents = [row[3] for row in ordered]
    twice = [name for name, count in Counter(document.id for document in documents).items() if count > 1]
    if twice:
        raise InputError(f"{name}: the id '{twice[0]}' stands in two rows: give each document an id of its own")
    with open(directory / DOCUMENTS, "wb") as file:
        for _, _, line, _ in ordered:
            file.write(line + b"\n")
    splits = [document.split for document in documents]
    entry = DataSetEntry(
        kind="text",
        version=content_version(about, (row[1] for row in ordered)),
        files=file_entries(directory, (DOCUMENTS,), len(documents)),
        leaks={
            "exact": count_leaks((document.text.encode() for document in documents), splits),
            "normalised": count_leaks((normalised_text(document.text).encode() for document in documents), splits),
        },
        **common_fields(about, splits),
    )
    labels = encode_labels([document.labels for document in documents], about.task, len(about.classes))
    check_corpus(labels, entry, name)
    return entry


def write_images(name: str, directory: Path, rows: ImageRows) -> DataSetEntry:
    """Write images.npy, labels.npy and split.npy into ``directory``. InputError for wrong shapes, labels or splits."""
    about = rows.about
    check_images(rows.images, rows.labels, rows.split, about.task, len(about.classes), Path(name))
    shape = canonical_json(list(rows.images.shape[1:])).encode()
    digests = [
        hashlib.sha256(shape + split.tobytes() + label.astype("<i4").tobytes() + image.tobytes()).digest()
        for image, label, split in zip(rows.images, rows.labels, rows.split, strict=True)
    ]
    order = sorted(range(len(digests)), key=lambda row: (rows.split[row], digests[row]))
    images, labels, split = rows.images[order], rows.labels[order], rows.split[order]
    for file, array in ((IMAGES, images), (LABELS, labels), (SPLIT, split)):
        np.save(directory / file, np.ascontiguousarray(array), allow_pickle=False)
    splits = [SPLITS[number] for number in split]
    entry = DataSetEntry(
        kind="image",
        version=content_version(about, digests),
        files=file_entries(directory, (IMAGES, LABELS, SPLIT), len(images)),
        leaks={
            "exact": count_leaks((image.tobytes() for image in images), splits),
            "normalised": count_leaks((normalised_pixels(image) for image in images), splits),
        },
        **common_fields(about, splits),
    )
    check_corpus(labels, entry, name)
    return entry


def common_fields(about: About, splits: Sequence[str]) -> dict:
    counts = Counter(splits)
    return {
        "task": about.task,
        "classes": tuple(about.classes),
        "source": about.source,
        "licence": about.licence,
        "splits": {split: counts[split] for split in SPLITS},
        "packages": dict(about.packages),
        "dropped": dict(about.dropped),
    }


def file_entries(directory: Path, names: Iterable[str], rows: int) -> dict[str, FileEntry]:
    paths = {name: directory / name for name in names}
    return {name: FileEntry(sha256_file(path), path.stat().st_size, rows) for name, path in paths.items()}


def write_rows(name: str, directory: Path, rows: TextRows | ImageRows) -> DataSetEntry:
    """Write the rows of data set ``name`` into the empty folder ``directory`` and return their manifest entry."""
    return (write_text if isinstance(rows, TextRows) else write_images)(name, Path(directory), rows)


def add_data_set(
    name: str, rows: TextRows | ImageRows, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH
) -> DataSetEntry:
    """Make data/NAME of the rows and record it in the manifest, in place of what was there under that name."""
    with published_directory(Path(data_directory) / name, replace=True) as working:
        entry = write_rows(name, working, rows)
    record(name, entry, manifest_path)
    return entry
