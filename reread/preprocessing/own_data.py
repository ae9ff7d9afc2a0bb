"""A user's table or folder -> a data set in data/: columns guessed, rows split, duplicates between splits left out.

The table is read three times as a stream: to know its columns, classes and splits; to write its documents; to put them
in the canonical order. Memory holds some 100 bytes per row and one row, so that 5 GB of CSV take less than 1 GB.
The files and the version are those that ``reread.preprocessing.raw.add_data_set`` makes of the same rows.

Shape legend: N rows.
"""

import hashlib
import json
import math
import os
import re
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import tee
from pathlib import Path
from typing import Any

import numpy as np

from reread.kinds import RawDataSet
from reread.preprocessing.columns import (
    BINARY,
    KNOWN_NAMES,
    LIKE_MISSING,
    LIST,
    MISSING,
    NO_COLUMN,
    Columns,
    guess_columns,
    is_number,
    parse_list,
)
from reread.preprocessing.delimited import AS_NAMED, Dialect, Row, encoding_of, undecodable
from reread.preprocessing.image_files import counted, read_images
from reread.preprocessing.manifest import (
    DATA_DIRECTORY,
    MANIFEST_PATH,
    STORED,
    DataSetEntry,
    FileEntry,
    Manifest,
    check_census,
    encode_labels,
    record,
)
from reread.preprocessing.raw import (
    About,
    check_about,
    check_plain_name,
    content_version,
    count_leaks,
    refuse_shared_groups,
    write_rows,
)
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.raw_text import (
    DOCUMENTS,
    Document,
    TextDataSet,
    check_document,
    document_line,
    normalised_text,
)
from reread.preprocessing.sources import SOURCES
from reread.preprocessing.tables import DELIMITED, SPLIT_NAMES, has_class_folders, read_table, skipped_files
from reread.storage.errors import InputError
from reread.storage.files import below, published_directory, read_object, sha256_file, write_text
from reread.storage.prepared import SPLITS

IDS = "ids.json"  # beside images: their ids, which are part of no version
HEAD_ROWS = 1000
PREVIEW_ROWS = 3
SENTENCE_WORDS = 6  # the name of a column is shorter, unless it is a question
MOST_CLASSES = 1000
SHARES = {"test": 0.15, "validation": 0.15}
OF_TRAIN = 0.1  # of the training split becomes validation where a table has none
LEFT_OUT_EMPTY, LEFT_OUT_LABEL = "with no text", "with no label"
LEFT_OUT_TWICE = "whose text is in a later split too"
LEFT_OUT_MISSING = "whose label is a missing value (if {} is a class, rename it in the table)"


@dataclass
class _Scan:
    """The first reading's record of each row that is kept: N of each."""

    classes: Counter[str] = field(default_factory=Counter)
    number: "array[int]" = field(default_factory=lambda: array("q"))
    label: "array[int]" = field(default_factory=lambda: array("l"))  # the row's first label, by order of appearance
    key: bytearray = field(default_factory=bytearray)  # 16 bytes of the normalised text
    group: bytearray = field(default_factory=bytearray)
    split: "array[int]" = field(default_factory=lambda: array("b"))  # -1: not given
    left_out: Counter[str] = field(default_factory=Counter)
    first_left_out: dict[str, str] = field(default_factory=dict)
    values: set[float | None] = field(default_factory=set)  # of a regression, the first two different numbers
    noted: Counter[str] = field(default_factory=Counter)  # of what is kept
    first_noted: dict[str, str] = field(default_factory=dict)

    def note(self, what: str, where: str) -> None:
        self.noted[what] += 1
        self.first_noted.setdefault(what, where)

    def leave_out(self, why: str, where: str) -> None:
        self.left_out[why] += 1
        self.first_left_out.setdefault(why, where)


@dataclass(frozen=True)
class Preview:
    """A data set that is not added: its first rows in the table's order, and how many it has of what.

    counts: int64 [K, 3], rows of each class in train, validation and test; dropped: {why: rows}; version: that of the
    manifest, "" of images, whose pixels it depends on.
    """

    rows: tuple[Document, ...]
    classes: tuple[str, ...]
    counts: np.ndarray
    splits: dict[str, int]
    dropped: Mapping[str, int]
    version: str = ""

    def named(self, labels: tuple[Any, ...]) -> list[str]:
        """Return a row's labels by their names, or its number."""
        return [f"{label:g}" if isinstance(label, float) else self.classes[label] for label in labels]

    def to_json(self) -> dict[str, Any]:
        by_split = (dict(zip(SPLITS, row, strict=True)) for row in self.counts.tolist())
        return {
            "rows": [row._asdict() for row in self.rows],
            "classes": dict(zip(self.classes, by_split, strict=True)),
            "splits": self.splits,
            "dropped": dict(self.dropped),
        }


@dataclass(frozen=True)
class Table:
    """A table with its columns, and how its values are read.

    given_splits, given_groups: those of ``split_file``, by id; empty where it has none.
    """

    path: Path
    columns: Columns
    split_file: str = ""
    given_splits: dict[str, str] = field(default_factory=dict)
    given_groups: dict[str, str] = field(default_factory=dict)
    dialect: Dialect = AS_NAMED

    def lines(self) -> list[str]:
        """Say what was found, a line per part."""
        shown = self.columns
        if has_class_folders(self.path):
            split = shown.split and "the name of the top folder"
            shown = replace(
                shown, content=("each file",), labels=("the name of its folder",), split=split, id="the file's path"
            )
        if self.given_splits:
            shown = replace(shown, split=f"of {self.split_file}")
        if self.given_groups:
            shown = replace(shown, group=f"of {self.split_file}")
        return shown.lines()

    def labels_of(self, row: Row, where: str) -> list[str]:
        """Return the names of a row's labels; none where the cell is empty. InputError for one that cannot be.

        Of a regression that is the name of the column, whose value is ``number_of``.
        """
        columns = self.columns
        if columns.task == "regression":
            return [] if self.number_of(row, where) is None else [columns.labels[0]]
        if len(columns.labels) > 1:
            labels = []
            for name in columns.labels:
                cell = _plain(row.get(name)).lower()
                if cell not in BINARY:
                    raise InputError(f"{where}, column '{name}': {cell!r} is neither 0 nor 1")
                if cell in ("1", "true"):
                    labels.append(name)
            return labels
        value = row.get(columns.labels[0])
        if columns.task == "single-label":
            return [text] if (text := _plain(value)) else []
        if columns.separator == LIST:
            cells = [] if not isinstance(value, list) and not _plain(value) else parse_list(value)
            if cells is None or any(isinstance(cell, list | dict) for cell in cells):
                raise InputError(f"{where}, column '{columns.labels[0]}': {value!r} is no list of labels")
            return list(dict.fromkeys(filter(None, map(_plain, cells))))
        texts = _plain(value).split(columns.separator) if columns.separator else [_plain(value)]
        return list(dict.fromkeys(filter(None, (text.strip() for text in texts))))

    def _text_of(self, value: Any, column: str, where: str) -> str:
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return ""
        if not isinstance(value, str):
            raise InputError(f"{where}, column '{column}': {value!r} is no text")
        return value

    def number_of(self, row: Row, where: str) -> float | None:
        """Return the number of a row; None where the cell is empty or a missing value. InputError for other texts."""
        value = _plain(row.get(self.columns.labels[0]))
        if not value or value.casefold() in LIKE_MISSING:
            return None
        try:
            return float(value)
        except ValueError:
            raise InputError(
                f"{where}, column '{self.columns.labels[0]}': {value!r} is no number: write it with a decimal point, "
                "and without separators of thousands, currency or unit"
            ) from None

    def content_of(self, row: Row, where: str) -> str:
        """Return a row's text, or the name of its image; texts of several columns are joined by line breaks."""
        parts = [self._text_of(row.get(name), name, where) for name in self.columns.content]
        value = "\n".join(part for part in parts if part.strip()) if len(parts) > 1 else parts[0]
        if not self.columns.files or not value.strip():
            return value
        file = self.file_of(value, where)
        if not file.is_file():
            raise InputError(f"{where}, column '{self.columns.content[0]}': the file {file} is missing")
        if self.columns.kind == "image":
            return value
        try:
            return file.read_text(encoding=encoding_of(self.dialect))
        except UnicodeError as error:
            raise InputError(undecodable(file, self.dialect, error)) from None

    def file_of(self, value: str, where: str) -> Path:
        """Return the file of a row; InputError for one that is not below the folder or beside the table."""
        folder = self.path if self.path.is_dir() else self.path.parent
        return below(folder, value, f"{where}: copy the file into that folder")

    def id_of(self, row: Row, number: int) -> str:
        return _plain(row.get(self.columns.id)) if self.columns.id else str(number)

    def split_of(self, row: Row, number: int, where: str) -> int:
        """Return the number of the row's split, -1 where none is given."""
        if self.given_splits:
            name = self.given_splits.get(self.id_of(row, number))
            if name is None:
                raise InputError(f"{where}: the file of splits has no row '{self.id_of(row, number)}'")
        elif self.columns.split:
            name = _plain(row.get(self.columns.split))
        else:
            return -1
        if name.lower() not in SPLIT_NAMES:
            raise InputError(f"{where}, column '{self.columns.split}': split '{name}' is none of {', '.join(SPLITS)}")
        return SPLITS.index(SPLIT_NAMES[name.lower()])

    def group_of(self, row: Row, number: int, where: str) -> str | None:
        """Return the row's group; None where no rows have one. InputError where this one alone has none."""
        if self.given_groups:
            column, group = self.split_file, self.given_groups.get(self.id_of(row, number), "")
        elif self.columns.group:
            column, group = self.columns.group, _plain(row.get(self.columns.group))
        else:
            return None
        if not group:
            raise InputError(f"{where}, '{column}': the group is empty; give every row one")
        return group


def _plain(value: Any) -> str:
    """Return a cell as text: "" for none and NaN, "5" for 5 and for 5.0."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def open_table(path: Path, split: str | None = None, dialect: Dialect = AS_NAMED, **columns: Any) -> Table:
    """Return the table of a file or folder; columns as ``guess_columns`` takes them.

    ``split`` may be a file of splits: a table with a column of ids or files, one of splits, and the column ``group``
    where it is not in the table.
    """
    path = Path(path)
    head = [row for (_, row), _ in zip(read_table(path, dialect), range(HEAD_ROWS + 1), strict=False)]
    whole = len(head) <= HEAD_ROWS
    head = head[:HEAD_ROWS]
    if dialect.header is None and path.is_file() and path.suffix.lower() in DELIMITED:
        refuse_row_as_header(head, path)
    splits: dict[str, str] = {}
    groups: dict[str, str] = {}
    file, group = "", columns.get("group")
    if split is not None and head and split not in head[0] and Path(split).is_file():
        file, split = split, None
        for where, row in read_table(Path(file)):
            of_group = row.pop(group, None) if group is not None and group not in head[0] else None
            cells = [_plain(cell) for cell in row.values()]
            if len(cells) != 2:
                raise InputError(
                    f"{where}: a file of splits has two columns, an id and a split, and may have the column of --group"
                )
            splits[cells[0]] = cells[1]
            if of_group is not None:
                groups[cells[0]] = _plain(of_group)
    given = {**columns, **({"group": NO_COLUMN} if groups else {})}
    guessed = guess_columns(head, str(path), split=split, whole=whole, **given)
    if splits:
        guessed = replace(guessed, split=None)
        if guessed.id is None:
            raise InputError(f"{path} has no column of ids: give one by --id, by which the file of splits names rows")
    return Table(path, guessed, file, splits, groups, dialect)


def refuse_row_as_header(head: list[Row], path: Path) -> None:
    """Raise InputError where the first line looks like a row: the header is missing.

    That is where the name of a column is also a value of it, again and again; and, where no column has a name that is
    known here, where it is a number as the column's values are, or as long as a text.
    """
    names = [name for name in head[0] if name] if head else []
    known = any(name.strip().lower() in KNOWN_NAMES for name in names)
    # Beside a known name, columns of 0 and 1 may be named by the numbers of classes.
    judged = [name for name in names if not (known and is_number(name))]
    again = (name for name in judged if sum(_plain(row[name]) == name.strip() for row in head) > 1)
    why = next((f"'{name}' is also a value of its column" for name in again), None)
    if why is None and not known:
        numbers = [name for name in names if all(is_number(_plain(row[name]) or "0") for row in head)]
        if number := next(filter(is_number, numbers), None):
            why = f"'{number}' is a number, as the values of its column are"
        elif long := next((name for name in names if _is_sentence(name)), None):
            why = f"'{' '.join(long.split()[:SENTENCE_WORDS])} ...' is long for the name of a column"
    if why:
        raise InputError(
            f"{path}: line 1 looks like a row, because {why}: write a header such as text,label, or give --no-header; "
            "if it is the header, give --header"
        )


def _is_sentence(name: str) -> bool:
    return len(name.split()) >= SENTENCE_WORDS and name.strip()[-1] not in "?:"


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"


def add_table(
    name: str,
    table: Table,
    source: str = "",
    licence: str = "unknown",
    size: int | None = None,
    data_directory: Path = DATA_DIRECTORY,
    manifest_path: Path = MANIFEST_PATH,
    say: Callable[[str], None] = lambda line: None,
    colours: str | None = None,
) -> DataSetEntry:
    """Write data/NAME of a table and record it in the manifest; a data set of that name is replaced.

    size: pixels to which images are resized; None: all have one size. colours: "grey" or "rgb", to which they are
    converted; None: all have the same. InputError names the row and column at fault.
    """
    about, count, rows = _chosen(name, table, source, licence, manifest_path, say)
    if table.columns.kind == "image":
        return _add_images(name, table, about, rows, count, size, colours, data_directory, manifest_path, say)
    with published_directory(Path(data_directory) / name, replace=True) as working:
        entry = _write_documents(name, working, rows, about)
    record(name, entry, manifest_path)
    return entry


def preview(
    name: str,
    table: Table,
    size: int | None = None,
    manifest_path: Path = MANIFEST_PATH,
    say: Callable[[str], None] = lambda line: None,
    colours: str | None = None,
) -> Preview:
    """Read and check a table as ``add_table`` does, and write nothing. InputError for all that it would refuse."""
    about, _, rows = _chosen(name, table, "", "", manifest_path, say)
    census = _Census(about, table.columns.kind)
    shown: list[Document] = []
    if table.columns.kind == "image":
        rows = ((where, document) for where, document, _ in _with_pixels(table, rows, size, colours, say))
    for where, document in rows:
        census.add(document, where)
        if len(shown) < PREVIEW_ROWS:
            shown.append(document)
    census.check(name)
    version = census.version() if table.columns.kind == "text" else ""
    return Preview(tuple(shown), tuple(about.classes), census.counts, census.splits(), about.dropped, version)


def check_name(name: str) -> None:
    """Raise InputError for a name that a user's data set cannot have."""
    check_plain_name(name)
    if name in SOURCES:
        raise InputError(f"'{name}' is the name of a published data set: give yours another by --name")


def _chosen(
    name: str, table: Table, source: str, licence: str, manifest_path: Path, say: Callable[[str], None]
) -> tuple[About, int, Iterator[tuple[str, Document]]]:
    """Return what is known of the data set, the number of rows that are kept, and these rows as ``_kept_rows`` does."""
    check_name(name)
    Manifest.load(manifest_path)  # a broken one is refused before the data set of that name is replaced
    if has_class_folders(table.path):
        for what, files in skipped_files(table.path).items():
            say(f"skipped {what}: {counted(files)}")
    scan = _scan(table)
    for why, where in scan.first_left_out.items():
        say(f"left out: {_rows(scan.left_out[why])} {why}, the first is {where}")
    classes = sorted(scan.classes, key=_natural)
    if len(classes) > MOST_CLASSES:
        raise InputError(
            f"{table.path}: column '{table.columns.labels[0]}' has {len(classes):,} different values: that is no "
            "class, give another column by --label, or --task regression where it has numbers"
        )
    if len(scan.values) == 1:
        raise InputError(
            f"{table.path}: column '{table.columns.labels[0]}' has the same number in each row: nothing can be "
            "learned, give another column by --label"
        )
    single = table.columns.task == "single-label"
    if single and _labels_in_cells(table) and 1 < len(classes) == len(scan.number):
        raise InputError(
            f"{table.path}: column '{table.columns.labels[0]}' has another value in each of the {_rows(len(classes))}: "
            "is it a label? Give another column by --label, or --task regression where it has numbers"
        )
    _refuse_split_without_rows(table, np.frombuffer(scan.split, np.int8))
    for what, where in scan.first_noted.items():
        say(f"warning: {_rows(scan.noted[what])} {what}, the first is {where}")
    for names in _alike(classes):
        alike = ", ".join(f"'{label}' ({_rows(scan.classes[label])})" for label in names)
        say(f"warning: the labels {alike} differ only in case or spaces: each is a class")
    for label in classes if _labels_in_cells(table) else ():
        if label.casefold() in LIKE_MISSING:
            say(
                f"warning: the label '{label}' ({_rows(scan.classes[label])}) looks like a missing value: it is a class"
            )
    split = _splits(scan)
    # Rows of one content have one number.
    _, content = np.unique(np.frombuffer(scan.key, "V16"), return_inverse=True)
    if len(content) > 1 and not content.any():
        raise InputError(f"{table.path}: all {_rows(len(content))} have the same {table.columns.kind}: give others")
    kept = _without_later_copies(content, split)
    _refuse_few_groups(table, scan, split[kept])
    if dropped := int((~kept).sum()):
        scan.left_out[LEFT_OUT_TWICE] += dropped
        say(f"left out: {_rows(dropped)} {LEFT_OUT_TWICE}")
    source = source or f"{table.path.name}, added by its user"
    if len(table.columns.content) > 1:
        source += f" (text: {', then '.join(table.columns.content)})"
    about = About(classes, source, licence, table.columns.task,
                  dropped=dict(scan.left_out))  # fmt: skip
    check_about(about, name)
    labels = np.frombuffer(scan.label, np.dtype("l"))[kept]
    for line in _repetitions(content[kept], labels, table.columns):
        say(line)
    numbers, split = np.frombuffer(scan.number, np.int64)[kept], split[kept]
    rows = _kept_rows(table, {label: place for place, label in enumerate(classes)}, numbers, split)
    return about, len(split), rows


def _natural(label: str) -> tuple[Any, ...]:
    """Order "2" before "10"."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", label) if part)


def _alike(classes: list[str]) -> list[list[str]]:
    """Return the classes whose names differ only in case and in spaces."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    return [names for names in alike.values() if len(names) > 1]


def _scan(table: Table) -> _Scan:
    scan = _Scan()
    several, in_cells = table.columns.task == "multi-label", _labels_in_cells(table)
    first: dict[str, int] = {}
    for number, (where, row) in enumerate(read_table(table.path, table.dialect)):
        text = table.content_of(row, where)
        labels = table.labels_of(row, where)
        if not text.strip():
            scan.leave_out(LEFT_OUT_EMPTY, where)
            continue
        if not labels and not several:
            scan.leave_out(LEFT_OUT_LABEL, where)
            continue
        if in_cells and (missing := MISSING.intersection(labels)):
            scan.leave_out(LEFT_OUT_MISSING.format(min(missing)), where)
            continue
        _note_cells(scan, table, row, labels, where)
        scan.classes.update(labels)
        if table.columns.task == "regression" and len(scan.values) < 2:
            scan.values.add(table.number_of(row, where))
        is_image = table.columns.kind == "image"
        content = table.file_of(text, where).read_bytes() if is_image else normalised_text(text).encode()
        scan.key += _digest(content)
        group = table.group_of(row, number, where)
        scan.group += _digest(group.encode()) if group else scan.key[-16:]
        scan.label.append(first.setdefault(labels[0] if labels else "", len(first)))
        scan.split.append(table.split_of(row, number, where))
        scan.number.append(number)
    return scan


def _labels_in_cells(table: Table) -> bool:
    """Return whether labels are values of cells: folders and columns of 0 and 1 have names that somebody has given."""
    named = has_class_folders(table.path) or len(table.columns.labels) > 1
    return not named and table.columns.task != "regression"


def _note_cells(scan: _Scan, table: Table, row: Row, labels: list[str], where: str) -> None:
    """Note cells of a kept row that are read as another label than they have: spaces around one, an empty one."""
    columns = table.columns
    if columns.task == "multi-label" and not labels:
        scan.note("without any label, which is kept", where)
    if len(columns.labels) > 1:
        for name in columns.labels:
            if not _plain(row.get(name)):
                scan.note(f"with an empty cell in column '{name}', which is read as 0", where)
    elif columns.task == "single-label":
        value = row.get(columns.labels[0])
        if isinstance(value, str) and value != labels[0]:
            scan.note(f"with spaces around the label '{labels[0]}' (the spaces are removed, the rows kept)", where)


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()[:16]


def _refuse_split_without_rows(table: Table, given: np.ndarray) -> None:
    """Raise InputError where the splits that rows name lack the training or test split. given: int8 [N], -1: none."""
    if not len(given) or (given < 0).any():
        return
    for split in ("train", "test"):
        if SPLITS.index(split) not in given:
            column = "the top folder" if has_class_folders(table.path) else f"column '{table.columns.split}'"
            named = table.split_file or column
            raise InputError(f"{table.path}: {named} names no {split} row: --split none splits by content")


def _refuse_few_groups(table: Table, scan: _Scan, split: np.ndarray) -> None:
    """Raise InputError where whole groups leave a split without a row. split: uint8 of the rows that are kept."""
    counts = np.bincount(split, minlength=len(SPLITS))
    if table.columns.group is None or not len(split) or counts.all() or max(scan.split) >= 0:
        return
    groups = len(np.unique(np.frombuffer(scan.group, "V16")))
    raise InputError(
        f"{table.path}: split '{SPLITS[int(counts.argmin())]}' would have no rows, because the {groups:,} groups of "
        f"column '{table.columns.group}' stay whole: give more groups, or --group {NO_COLUMN}"
    )


def _splits(scan: _Scan) -> np.ndarray:
    """Return each row's split, uint8 [N]. Whole groups go to one split; each label has its share of every split."""
    given = np.frombuffer(scan.split, np.int8)
    split = np.maximum(given, 0).astype(np.uint8)
    if not len(given):
        return split
    if (given >= 0).all():
        if not (given == SPLITS.index("validation")).any():
            train = given == SPLITS.index("train")
            split[train] = _assign(scan, train, {"validation": OF_TRAIN})
        return split
    return _assign(scan, np.ones(len(given), bool), SHARES)


def _assign(scan: _Scan, rows: np.ndarray, shares: dict[str, float]) -> np.ndarray:
    """Return the splits of ``rows`` (bool [N]): groups in the order of their digests, label by label."""
    groups = np.frombuffer(scan.group, "V16")[rows]
    labels = np.frombuffer(scan.label, np.dtype("l"))[rows]
    _, first, of_row, sizes = np.unique(groups, return_index=True, return_inverse=True, return_counts=True)
    of_group = np.zeros(len(first), np.uint8)
    for label in np.unique(labels[first]):
        of_label = np.flatnonzero(labels[first] == label)  # in the order of their digests
        passed = np.cumsum(sizes[of_label]) / sizes[of_label].sum()
        start = 0.0
        for name, share in shares.items():
            of_group[of_label[(passed > start) & (passed <= start + share + 1e-9)]] = SPLITS.index(name)
            start += share
    return of_group[of_row]


def _without_later_copies(content: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Return which rows are kept, bool [N]: a content that is in a later split too is left out of the earlier one."""
    latest = np.zeros(content.max(initial=-1) + 1, np.uint8)
    np.maximum.at(latest, content, split)
    return split == latest[content]


def _repetitions(content: np.ndarray, labels: np.ndarray, columns: Columns) -> list[str]:
    """Say how many rows repeat another one of their split, and how many contents have several labels.

    Arguments: the content's number and the label of each row that is kept.
    """
    different = int(np.count_nonzero(np.bincount(content)))
    if different == len(content):
        return []
    what = columns.kind
    lines = [f"repeated: {_rows(len(content) - different)} with the {what} of another row, kept in the same split"]
    if columns.task == "single-label":
        classes = int(labels.max()) + 1
        pairs = np.unique(content * classes + labels) // classes
        if several := int((np.bincount(pairs) > 1).sum()):
            lines.append(f"warning: {several:,} {what}{'s' if several > 1 else ''} with two or more different labels")
    return lines


def _kept_rows(
    table: Table, places: dict[str, int], numbers: np.ndarray, splits: np.ndarray
) -> Iterator[tuple[str, Document]]:
    """Read the table again: where each kept row is, and the row as a document (``text``: of an image, its file)."""
    place = 0
    for number, (where, row) in enumerate(read_table(table.path, table.dialect)):
        if place == len(numbers) or numbers[place] != number:
            continue
        labels: tuple[Any, ...] = tuple(sorted(places[label] for label in table.labels_of(row, where)))
        if (number_of_row := table.number_of(row, where) if table.columns.task == "regression" else None) is not None:
            labels = (number_of_row,)
        text = table.content_of(row, where)
        group = table.group_of(row, number, where)
        yield where, Document(table.id_of(row, number), labels, SPLITS[splits[place]], text, group)
        place += 1


class _Census:
    """The last reading's record of the rows that are kept.

    counts: int64 [K, 3], rows of each class in train, validation and test; split uint8 [N]; the rest bytes per row.
    """

    def __init__(self, about: About, kind: str) -> None:
        self.about, self.kind = about, kind
        self.counts = np.zeros((len(about.classes), len(SPLITS)), np.int64)
        self.split = array("B")
        self.lines, self.exact, self.normalised, self.ids, self.groups = (bytearray() for _ in range(5))
        self.group_names: dict[str, int] = {}

    def add(self, document: Document, where: str) -> bytes:
        """Count a row and return its line of documents.jsonl; InputError where it cannot be a row."""
        check_document(document, self.about.task, len(self.about.classes), where)
        try:
            line = document_line(document)
        except UnicodeEncodeError:
            raise InputError(f"{where}: the text has a character that UTF-8 cannot encode") from None
        self.lines += hashlib.sha256(line).digest()
        self.exact += _digest(document.text.encode())
        self.normalised += _digest(normalised_text(document.text).encode())
        self.ids += _digest(document.id.encode())
        if document.group is not None:
            self.groups += self.group_names.setdefault(document.group, len(self.group_names)).to_bytes(8, "little")
        self.split.append(SPLITS.index(document.split))
        # Of a regression, the one output counts all rows.
        classes = [0] if self.about.task == "regression" else list(document.labels)
        self.counts[classes, self.split[-1]] += 1
        return line

    def splits(self) -> dict[str, int]:
        """Return the rows of each split."""
        return {split: self.split.count(number) for number, split in enumerate(SPLITS)}

    def version(self) -> str:
        return content_version(self.about, np.frombuffer(self.lines, "V32"))

    def check(self, name: str) -> None:
        """Raise InputError where rows share an id, splits a group, or a split or all classes but one have no row."""
        if self.kind == "text" and len(np.unique(np.frombuffer(self.ids, "V16"))) < len(self.split):
            raise InputError(f"{name}: two rows have the same id: give another column by --id, or none")
        if self.groups:
            splits = np.frombuffer(self.split, np.uint8)
            refuse_shared_groups(np.frombuffer(self.groups, np.int64), list(self.group_names), splits, name)
        several = self.about.task == "multi-label"
        present = len(self.about.classes) if several else int(self.counts.any(axis=1).sum())
        check_census(len(self.split), 2 if self.about.task == "regression" else present, self.splits(), name)


def _write_documents(name: str, directory: Path, rows: Iterator[tuple[str, Document]], about: About) -> DataSetEntry:
    """Write documents.jsonl in the order of ``reread.preprocessing.raw_text.write`` and return its manifest entry."""
    census = _Census(about, "text")
    ends = array("q", [0])
    unordered = directory / "unordered"
    with open(unordered, "wb") as file:
        for where, document in rows:
            ends.append(ends[-1] + file.write(census.add(document, where) + b"\n"))
    census.check(name)
    splits, digests = np.frombuffer(census.split, np.uint8), np.frombuffer(census.lines, "V32")
    order = np.lexsort((np.argsort(np.argsort(digests)), splits))
    with open(unordered, "rb") as source, open(directory / DOCUMENTS, "wb") as file:
        for row in order.tolist():
            source.seek(ends[row])
            file.write(source.read(ends[row + 1] - ends[row]))
    os.remove(unordered)
    path = directory / DOCUMENTS
    contents = {"exact": census.exact, "normalised": census.normalised}
    return DataSetEntry(
        kind="text",
        task=about.task,
        classes=tuple(about.classes),
        source=about.source,
        licence=about.licence,
        version=census.version(),
        files={path.name: FileEntry(sha256_file(path), path.stat().st_size, len(splits))},
        splits=census.splits(),
        leaks={how: count_leaks(np.frombuffer(keys, "V16"), splits) for how, keys in contents.items()},
        dropped=dict(about.dropped),
        groups=STORED if census.groups else "",
    )


def _add_images(
    name: str,
    table: Table,
    about: About,
    rows: Iterator[tuple[str, Document]],
    count: int,
    size: int | None,
    colours: str | None,
    data_directory: Path,
    manifest_path: Path,
    say: Callable[[str], None],
) -> DataSetEntry:
    """Read the images into a memory-mapped array and add them. InputError names one that is broken or of other size."""
    split = np.zeros(count, np.uint8)
    ids: list[str] = []
    labels: list[tuple[Any, ...]] = []
    groups: list[str | None] = []
    images: np.ndarray | None = None
    Path(data_directory).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=data_directory, prefix=f".{name}.") as working:
        for row, (_, document, pixels) in enumerate(_with_pixels(table, rows, size, colours, say)):
            if images is None:
                shape = (count, *pixels.shape)
                file = Path(working) / "images.npy"
                images = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
                # On a full disk a write to mapped memory kills the process: the room is reserved before.
                if hasattr(os, "posix_fallocate"):  # macOS lacks it
                    with open(file, "r+b") as reserved:
                        os.posix_fallocate(reserved.fileno(), 0, file.stat().st_size)
            images[row], split[row] = pixels, SPLITS.index(document.split)
            ids.append(document.id)
            labels.append(document.labels)
            groups.append(document.group)
        if images is None:
            raise InputError(f"{name} has no rows: a data set needs rows in {', '.join(SPLITS)}")
        known = [group for group in groups if group is not None] or None
        encoded = encode_labels(labels, about.task, len(about.classes))
        with published_directory(Path(data_directory) / name, replace=True) as directory:
            entry, written = write_rows(name, directory, ImageRows(about, images, encoded, split, known))
            about_ids = {"version": entry.version, "ids": [ids[row] for row in written.order]}
            write_text(directory / IDS, json.dumps(about_ids))  # in ASCII: a file's name may be no UTF-8
        record(name, entry, manifest_path)
    return entry


def row_ids(data: RawDataSet) -> list[str] | None:
    """Return the id of each row of a data set, in the order of its rows: of an image of a folder, its path.

    None where the data set has no ids: it is of no user, or was added before ids of images were stored.
    """
    if isinstance(data, TextDataSet):
        return [document.id for document in data.documents()]
    path = data.directory / IDS
    if not path.is_file():
        return None
    stored = read_object(path, "version", "ids")
    return [*stored["ids"]] if stored["version"] == data.entry.version else None


def _with_pixels(
    table: Table,
    rows: Iterator[tuple[str, Document]],
    size: int | None,
    colours: str | None,
    say: Callable[[str], None],
) -> Iterator[tuple[str, Document, np.ndarray]]:
    """Yield each row with its image, uint8 [H, W, 1 or 3]. InputError as ``read_images``."""
    rows, again = tee(rows)
    files = ((where, document.text, table.file_of(document.text, where)) for where, document in again)
    # The rows are not read ahead: the last image is followed by what is said of all.
    for pixels in read_images(files, size, colours, say):
        where, document = next(rows)
        yield where, document, pixels
