"""Rows -> the files of data/NAME and their manifest entry.

Each kind of data writes its rows in one canonical order, so that equal content gives equal bytes and an equal version,
however its source was packed.

Shape legend: N rows, K classes.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from reread import goals, kinds
from reread.preprocessing.manifest import (
    DATA_DIRECTORY,
    MANIFEST_PATH,
    STORED,
    DataSetEntry,
    FileEntry,
    Manifest,
    check_corpus,
    forget,
    record,
)
from reread.preprocessing.sources import SOURCES
from reread.storage.errors import InputError, refuse_unknown
from reread.storage.files import canonical_json, fsync_path, published_directory, sha256_file
from reread.storage.prepared import SPLITS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True)
class About:
    """A data set's properties beside its rows.

    packages, dropped  as in DataSetEntry
    groups             the source whose ``group_of`` derives each row's group; "" where the rows have their own, or none
    """

    classes: Sequence[str]
    source: str
    licence: str
    task: str = "single-label"
    packages: Mapping[str, str] = field(default_factory=dict)
    dropped: Mapping[str, int] = field(default_factory=dict)
    groups: str = ""


def split_by_quota(groups: Mapping[str, int], shares: Mapping[str, float]) -> dict[str, str]:
    """Assign whole groups to splits: {group: its rows} -> {group: its split}.

    In the order of the sha256 of their names, each group goes to the first split of ``shares`` that has room for all
    of its rows, and to train where none has. Rows that belong together (duplicates, one source file) make a group.
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
    """Return whether a row of a published training split goes to validation: one in ten, chosen by its content."""
    return int.from_bytes(hashlib.sha256(content).digest()[:8], "big") % one_in == 0


def published_splits(images: np.ndarray, train_rows: int) -> np.ndarray:
    """Return uint8 [N]: the first ``train_rows`` images are published for training, a tenth of them validation."""
    numbers = [int(held_out(image.tobytes())) for image in images[:train_rows]]
    return np.array(numbers + [SPLITS.index("test")] * (len(images) - train_rows), dtype=np.uint8)


def number_groups(names: Iterable[str]) -> tuple[np.ndarray, list[str]]:
    """Number groups in the order of their first row: each row's number, int64 [N], and the name of each number."""
    numbers: dict[str, int] = {}
    of_rows = np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.int64)
    return of_rows, list(numbers)


def refuse_shared_groups(groups: np.ndarray, names: Sequence[str], split: np.ndarray, where: str) -> None:
    """Raise InputError where a group has rows in two splits; arguments as ``number_groups`` returns them."""
    pairs = np.unique(np.stack((groups, split)), axis=1)
    repeated = np.flatnonzero(np.diff(pairs[0]) == 0)
    if len(repeated):
        group, (first, second) = pairs[0, repeated[0]], pairs[1, repeated[0] : repeated[0] + 2]
        raise InputError(
            f"{where}: group '{names[group]}' has rows in {SPLITS[first]} and in {SPLITS[second]}: "
            "move all of them to one split"
        )


def digests_of(contents: Iterable[bytes]) -> np.ndarray:
    """Return the sha256 of each content, 32 bytes [N]."""
    digests = bytearray()
    for content in contents:
        digests += hashlib.sha256(content).digest()
    return np.frombuffer(digests, "V32")


def count_leaks(digests: np.ndarray, split: np.ndarray) -> dict[str, int]:
    """Count the distinct contents that two splits share, by their digests [N]: {"train-test": 123, ...}."""
    of_split = {name: np.unique(digests[split == number]) for number, name in enumerate(SPLITS)}
    return {
        f"{first}-{second}": len(np.intersect1d(of_split[first], of_split[second], assume_unique=True))
        for first, second in combinations(SPLITS, 2)
    }


def content_version(about: About, row_digests: Sequence[bytes] | np.ndarray) -> str:
    """Return the hex sha256 of classes, task and the sorted digests of rows: equal content in any order is equal."""
    digest = hashlib.sha256(canonical_json([list(about.classes), about.task]).encode())
    digest.update(np.sort(np.asarray(row_digests, "V32")).tobytes())
    return digest.hexdigest()


def write_rows(name: str, directory: Path, rows: Any) -> tuple[DataSetEntry, kinds.RawRows]:
    """Write the rows of data set ``name`` into the empty folder ``directory``.

    Return their manifest entry, and the rows as they are written.
    InputError for what the kind of the rows refuses, for a corpus from which nothing can be learned, and for a group
    that has rows in two splits.
    """
    directory, about = Path(directory), rows.about
    check_about(about, name)
    written: kinds.RawRows = kinds.load(kinds.kind(rows.kind).write_raw)(name, directory, rows)
    if written.groups is not None:
        refuse_shared_groups(*number_groups(written.groups), written.split, name)
    counts = np.bincount(written.split, minlength=len(SPLITS)).tolist()
    entry = DataSetEntry(
        kind=rows.kind,
        task=about.task,
        classes=tuple(about.classes),
        source=about.source,
        licence=about.licence,
        version=content_version(about, written.digests),
        files={
            path.name: FileEntry(sha256_file(path), path.stat().st_size, len(written.split))
            for path in sorted(directory.iterdir())
        },
        splits=dict(zip(SPLITS, counts, strict=True)),
        packages=dict(about.packages),
        leaks={how: count_leaks(digests_of(contents), written.split) for how, contents in written.contents.items()},
        dropped=dict(about.dropped),
        groups=about.groups or (STORED if written.groups is not None else ""),
    )
    check_corpus(written.labels, entry, name)
    return entry, written


def check_plain_name(name: str) -> None:
    """Raise InputError for a name that is not made of letters, digits, '-' and '_'."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise InputError(f"data set name {name!r}: use letters, digits, '-' and '_', a letter or digit first")


def check_about(about: About, where: str) -> None:
    """Raise InputError for a task that there is not, and for classes that are no distinct names."""
    refuse_unknown([about.task], goals.available(), f"{where}, task")
    for number, name in enumerate(about.classes):
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{where}: class {number} is {name!r}: it must be a name")
        if name in about.classes[:number]:
            raise InputError(f"{where}: two classes have the name '{name}': give each its own name")


def add_data_set(
    name: str, rows: Any, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH
) -> DataSetEntry:
    """Write data/NAME of the rows and record it in the manifest; a data set of that name is replaced.

    InputError as ``check_plain_name`` and ``write_rows``.
    """
    check_plain_name(name)
    with published_directory(Path(data_directory) / name, replace=True) as working:
        entry, _ = write_rows(name, working, rows)
    record(name, entry, manifest_path)
    return entry


def removable(name: str, manifest_path: Path = MANIFEST_PATH) -> DataSetEntry:
    """Return the entry of a user's data set; InputError for an unknown name and for one that the project makes."""
    if name in SOURCES:
        raise InputError(f"'{name}' is a data set of the project: only own data sets are removed")
    manifest = Manifest.load(manifest_path)
    if not manifest.datasets:
        raise InputError(f"no data set '{name}': {manifest_path} has none, and there is nothing to remove")
    return manifest.entry(name)


def remove_data_set(name: str, data_directory: Path = DATA_DIRECTORY, manifest_path: Path = MANIFEST_PATH) -> None:
    """Remove data/NAME of the user's own and its entry in the manifest; InputError as ``removable``.

    The folder is hidden first and deleted last. After an error it is in its place again; after a kill the same call
    ends what was begun.
    """
    removable(name, manifest_path)
    directory = Path(data_directory) / name
    hidden = directory.with_name(f".{name}.removed")
    if directory.is_dir():
        shutil.rmtree(hidden, ignore_errors=True)
        os.replace(directory, hidden)
        fsync_path(directory.parent)
    try:
        forget(name, manifest_path)
    except BaseException:
        if hidden.is_dir():
            os.replace(hidden, directory)
        raise
    shutil.rmtree(hidden, ignore_errors=True)
