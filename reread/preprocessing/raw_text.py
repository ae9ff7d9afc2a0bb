"""Raw text: data/NAME/documents.jsonl, one document per line as JSON.

A document has an id, labels, a split, a text and, optionally, a group. Documents that are not independent of one
another (of one film, patient or source file) share a group.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from reread import goals
from reread.kinds import RawRows
from reread.preprocessing.manifest import STORED, DataSetEntry, encode_labels
from reread.preprocessing.raw import About, number_groups
from reread.preprocessing.sources import SOURCES
from reread.storage.errors import InputError
from reread.storage.files import canonical_json
from reread.storage.prepared import SPLITS

DOCUMENTS = "documents.jsonl"
FIELDS = ("id", "labels", "split", "text")
WORD = re.compile(r"\w+")


class Document(NamedTuple):
    """One row of a text data set. ``labels`` are class numbers: exactly one where the task is single-label. Of a
    regression they are its number."""

    id: str
    labels: tuple[Any, ...]
    split: str
    text: str
    group: str | None = None


@dataclass(frozen=True)
class TextRows:
    """The documents that a source makes. Either all of them have a group or none."""

    about: About
    documents: Sequence[Document]
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class TextDataSet:
    """An opened text data set, its bytes checked against the manifest. Documents are read from the file."""

    name: str
    directory: Path
    entry: DataSetEntry

    def documents(self) -> Iterator[Document]:
        """Yield the documents in the file's order; InputError names the line that is not a document."""
        path = self.directory / DOCUMENTS
        # A file read as bytes breaks at \n alone: U+2028 and the like may stand in a text.
        with open(path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                yield parse_document(line, self.entry, f"{path}, line {number}")

    @cached_property
    def _columns(self) -> tuple[np.ndarray, np.ndarray]:
        labels, split = [], []
        for document in self.documents():
            labels.append(document.labels)
            split.append(SPLITS.index(document.split))
        return encode_labels(labels, self.entry.task, len(self.entry.classes)), np.array(split, np.uint8)

    @property
    def labels(self) -> np.ndarray:
        """int32 [N] (single-label) or uint8 [N, K] (multi-label)."""
        return self._columns[0]

    @property
    def split(self) -> np.ndarray:
        """uint8 [N]: 0 train, 1 validation, 2 test."""
        return self._columns[1]

    def groups(self) -> tuple[np.ndarray, list[str]] | None:
        """Return each row's group as int64 [N] and the groups' names; None where no groups are known."""
        group_of = group_reader(self.entry.groups)
        return None if group_of is None else number_groups(map(group_of, self.documents()))

    def read(self, rows: Sequence[int]) -> list[str]:
        """Return the whole texts of ``rows``, numbers in the file, in the order given."""
        needed = set(rows)
        texts = {row: document.text for row, document in enumerate(self.documents()) if row in needed}
        return [texts[row] for row in rows]

    def changes(self, rows: TextRows) -> str:
        """Say how many documents of ``rows`` are new, missing or different."""
        old, new = (
            {document.id: document for document in documents} for documents in (self.documents(), rows.documents)
        )
        changed = sum(old[key] != new[key] for key in old.keys() & new.keys())
        return (
            f"{len(new.keys() - old.keys())} documents added, {len(old.keys() - new.keys())} removed, {changed} changed"
        )


def group_reader(groups: str) -> Callable[[Document], str] | None:
    """Return the function that gives a document its group, ``groups`` as in DataSetEntry; None where there is none."""
    if not groups:
        return None
    return attrgetter("group") if groups == STORED else SOURCES.module(groups).group_of


def parse_document(line: bytes, entry: DataSetEntry, where: str) -> Document:
    """Read one line of documents.jsonl; InputError names ``where`` it is and the fault."""
    try:
        row = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: invalid UTF-8 at byte {error.start}: save the file as UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: not valid JSON ({error})") from None
    fields = (*FIELDS, "group") if entry.groups == STORED else FIELDS
    if not isinstance(row, dict) or set(row) != set(fields):
        raise InputError(f"{where}: a document has exactly the fields {', '.join(fields)}")
    if not isinstance(row["labels"], list):
        raise InputError(f"{where}: labels is {row['labels']!r}: it must be a list of class numbers")
    document = Document(**{**row, "labels": tuple(row["labels"])})
    check_document(document, entry.task, len(entry.classes), where)
    return document


def check_document(document: Document, task: str, class_count: int, where: str) -> None:
    """Raise InputError unless the document has an id, a text, a split, and labels that are class numbers."""
    for name in ("id", "text", "group"):
        value = getattr(document, name)
        if not isinstance(value, str) and not (name == "group" and value is None):
            raise InputError(f"{where}: {name} is {value!r}: it must be a string")
        if name != "text" and value is not None and any("\ud800" <= character <= "\udfff" for character in value):
            raise InputError(f"{where}: the {name} {value!r} has a character that UTF-8 cannot encode: rename it")
    if not document.text.strip():
        raise InputError(f"{where}: document '{document.id}' is empty: remove it or give it a text")
    if document.split not in SPLITS:
        raise InputError(
            f"{where}: split '{document.split}' of document '{document.id}' is not one of {', '.join(SPLITS)}"
        )
    if goals.beyond_labels(task):
        if fault := goals.goal(task).fault(document.labels):
            raise InputError(f"{where}: labels of document '{document.id}' are {list(document.labels)}: {fault}")
        return
    if task == "single-label" and len(document.labels) != 1:
        raise InputError(f"{where}: document '{document.id}' has {len(document.labels)} labels, the task allows one")
    for label in document.labels:
        if type(label) is not int or not 0 <= label < class_count:
            raise InputError(
                f"{where}: label {label!r} of document '{document.id}' is not a class number (0 to {class_count - 1})"
            )


def with_plain_types(document: Document) -> Document:
    """Return the document with labels as a tuple of ints, and an id or group that is a number as text.

    One label may stand alone, and labels and ids may be numpy's integers.
    """

    def text(value: Any) -> Any:
        return str(value) if isinstance(value, int | np.integer) and not isinstance(value, bool) else value

    given: Any = document.labels if isinstance(document.labels, list | tuple | np.ndarray) else (document.labels,)
    labels = tuple(int(label) if isinstance(label, np.integer) else label for label in given)
    return document._replace(id=text(document.id), labels=labels, group=text(document.group))


def write(name: str, directory: Path, rows: TextRows) -> RawRows:
    """Write documents.jsonl into ``directory``, by split and then by the sha256 of the line.

    InputError names the row that is not a document. All rows are in memory at once, as texts and as lines.
    """
    about, ordered = rows.about, []
    for number, document in enumerate(rows.documents, 1):
        where = f"{name}, row {number}"
        document = with_plain_types(document)
        check_document(document, about.task, len(about.classes), where)
        if (document.group is None) != (rows.documents[0].group is None):
            raise InputError(f"{where}: document '{document.id}' and row 1 differ: give every row a group, or none")
        try:
            line = document_line(document)
        except UnicodeEncodeError:
            raise InputError(f"{where}: document '{document.id}' has a character that UTF-8 cannot encode") from None
        ordered.append((SPLITS.index(document.split), hashlib.sha256(line).digest(), line, document))
    ordered.sort(key=lambda row: row[:2])
    documents, group_of = [row[3] for row in ordered], group_reader(about.groups)
    if group_of is None and documents and documents[0].group is not None:
        group_of = group_reader(STORED)
    repeated = [name for name, count in Counter(document.id for document in documents).items() if count > 1]
    if repeated:
        raise InputError(f"{name}: two rows have the id '{repeated[0]}': give each document an id of its own")
    with open(directory / DOCUMENTS, "wb") as file:
        for _, _, line, _ in ordered:
            file.write(line + b"\n")
    texts = [document.text for document in documents]
    return RawRows(
        digests=[row[1] for row in ordered],
        labels=encode_labels([document.labels for document in documents], about.task, len(about.classes)),
        split=np.array([row[0] for row in ordered], np.uint8),
        groups=None if group_of is None else list(map(group_of, documents)),
        contents={
            "exact": (text.encode() for text in texts),
            "normalised": (normalised_text(text).encode() for text in texts),
        },
    )


def document_line(document: Document) -> bytes:
    """Return the line of documents.jsonl, without its end; a group that is not known is left out."""
    return canonical_json({name: value for name, value in document._asdict().items() if value is not None}).encode()


def normalised_text(text: str) -> str:
    """Return the words of a text in lower case, without punctuation and line breaks."""
    return " ".join(WORD.findall(text.lower()))
