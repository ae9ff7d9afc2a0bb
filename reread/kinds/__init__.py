"""The kinds of data. reread/kinds/NAME.py defines ``KIND``, a Kind: all that one kind of data needs, in one place.

To add a kind is to add one file. Its entries are functions or classes of that very file, or addresses
'module:attribute' that are imported when they are used. So importing a kind imports no other part of the project, and
a machine that trains needs no library of preprocessing.

Shape legend: N rows of a data set, n rows of a batch, K classes.
"""

import functools
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reread.storage.errors import InputError
from reread.storage.registry import Registry

Entry = Callable[..., Any] | str

REGISTRY = Registry("reread.kinds", "kind of data", requires=("KIND",))


@dataclass(frozen=True)
class Baseline:
    """A simple classifier that the networks are compared with.

    grid      values of its regularisation C, from the strongest on; validation chooses one
    features  f(raw rows by split) -> features by split
    fit       f(features, labels by split, classes, task, C) -> reread.evaluation.baselines.Fitted
    tasks     of the data that it reads
    serve     f(state of features and fit, classes, task) -> f(raw rows) -> float32 probabilities [n, K], as
              reread/evaluation/linear_models.py has them; None: it is not served
    knows     f(state) -> f(raw row) -> whether it has a feature that was seen in training; None: that is not known
    """

    name: str
    title: str
    grid: tuple[float, ...]
    features: Entry
    fit: Entry
    serve: Entry | None = None
    knows: Entry | None = None
    tasks: tuple[str, ...] = ("single-label", "multi-label")


@dataclass(frozen=True)
class RawRows:
    """Rows as a kind has written them, in the order of the files.

    digests   sha256 of each row with its label and split
    labels    int32 [N] (single-label) or uint8 [N, K] (multi-label)
    split     uint8 [N], 0 to 2 in the order of SPLITS
    groups    the name of each row's group; None where no groups are known
    contents  what is compared between splits to find leaks: {"exact": bytes of each row, ...}
    order     the number that each row had as it was given; may be left out
    """

    digests: Sequence[bytes]
    labels: np.ndarray
    split: np.ndarray
    groups: Sequence[str] | None = None
    contents: Mapping[str, Iterable[bytes]] = field(default_factory=dict)
    order: Sequence[int] = ()


class RawDataSet(Protocol):
    """An opened data set, its rows in the order of its files. ``entry`` is its entry in data.manifest.json.

    labels  int32 [N] (single-label) or uint8 [N, K] (multi-label)
    split   uint8 [N]: 0 train, 1 validation, 2 test
    """

    name: str
    directory: Path
    entry: Any
    labels: np.ndarray
    split: np.ndarray

    def groups(self) -> tuple[np.ndarray, list[str]] | None:
        """Return each row's group as int64 [N] and the groups' names; None where no groups are known."""

    def read(self, rows: Sequence[int]) -> Any:
        """Return the raw content of ``rows`` in the order given: n texts, or an array [n, ...]."""

    def changes(self, rows: Any) -> str:
        """Describe in half a sentence how the new ``rows`` differ."""


class Reader(Protocol):
    """Reads a user's input for a served model. It is packed with the model, and so is what its module imports.

    FILES       files of the prepared folder that it needs
    OPTIONAL    files that some prepared folders have for it, each with the package that reads it; may be left out
    PACKAGES    installed packages that it needs, beside numpy, pandas and torch
    PARAMETERS  parameters of a request with their defaults
    """

    FILES: tuple[str, ...]
    PACKAGES: tuple[str, ...]
    PARAMETERS: Mapping[str, Any]

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        """folder: where FILES are; description: the data set's prepared.json."""

    @staticmethod
    def model_input(values: Any, description: Mapping[str, Any]) -> Any:
        """Return Python values as a model takes them: a DataFrame or an array. InputError for other values."""

    @staticmethod
    def example(prepared: Any, count: int) -> Any:
        """Return the first ``count`` rows of the test split as Python values."""

    @staticmethod
    def limits(description: Mapping[str, Any]) -> list[str]:
        """Return sentences for a model's card: what the network does not read."""

    def check(self, model_input: Any) -> Sequence[Any]:
        """Return the rows of a request; ValueError, in one line, for one that cannot be read."""

    def parts(self, rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
        """Yield the rows in order, as many at a time as memory should hold."""

    def blank(self) -> Sequence[Any]:
        """Return one row that can be read: the columns of an answer to no rows are taken from its answer."""

    def read(self, rows: Sequence[Any]) -> "Reading":
        """Return a part as prepared arrays."""


@dataclass(frozen=True)
class Reading:
    """Some rows of a request.

    arrays   as the collator reads them
    columns  what the answer says of each row beside the network's result
    words    of each row its sentences, each a list of words, where a network's attention can be shown on them
    """

    arrays: Mapping[str, np.ndarray]
    columns: Mapping[str, Any] = field(default_factory=dict)
    words: Sequence[Sequence[Sequence[str]]] | None = None


@dataclass(frozen=True)
class Explanation:
    """A page beside a report: its file's name, its title, and what it shows, as the end of a sentence."""

    file: str
    title: str
    shows: str


@dataclass(frozen=True)
class Kind:
    """All that one kind of data needs.

    row           what one row is called: "document"
    reads         what its networks read, for a model's card: "documents as raw text"

    Raw data (the rows that a source makes name their kind in an attribute ``kind``):

    write_raw     f(name, folder, rows) -> RawRows; writes the files of data/NAME, equal ones for equal
                  rows in any order
    open_raw      f(name, folder, entry) -> the opened data set, a RawDataSet

    Prepared arrays:

    settings      frozen dataclass of what params.yaml may have under ``preprocessing: NAME``
    prepare       f(data, settings, folder) -> dict with ``splits`` and what else prepared.json says; writes the arrays:
                  labels.npy, raw_indices.npy (int64 [N], each row's number in the files of data/NAME) and those that
                  the collator reads; rows in split order
    libraries     f(settings) -> names of the installed libraries on whose version the arrays depend, beside numpy

    Batches:

    collator      class that makes a network's inputs of rows, a reread.batches.collation.KindCollator
    row_array     the name of an array that ``prepare`` writes, with one entry per row
    padding       f(inputs) -> pairs of a network's inputs that mean the same, one padded further than the other; None
                  where inputs have no padding
    augmented     whether rows are images, float32 [n, C, H, W] for the network, to which augmentation applies

    Evaluation and serving:

    baselines     what the networks are compared with; may be none
    explain       functions f(records, best_seeds, folder) -> Explanation or None; each writes into ``folder`` a page of
                  what networks' answers to rows of the test split rest on; records: reread.evaluation.records.RunRecord
                  of each variant and seed; best_seeds: by variant; None where no network has something to show, or the
                  weights are not there
    reader        class that reads a user's input for a served model, a Reader; None: models are not served
    """

    row: str
    reads: str
    write_raw: Entry
    open_raw: Entry
    settings: Entry
    prepare: Entry
    collator: Entry
    row_array: str
    padding: Entry | None = None
    augmented: bool = False
    libraries: Entry | None = None
    explain: tuple[Entry, ...] = ()
    baselines: tuple[Baseline, ...] = ()
    reader: Entry | None = None


def available() -> list[str]:
    """Return the names of the kinds in order. Files are parsed and not imported."""
    return REGISTRY.available()


@functools.cache
def kind(name: str) -> Kind:
    """Return the kind ``name``; InputError names the nearest one where there is none."""
    return REGISTRY.module(name).KIND


def load(entry: Entry) -> Any:
    """Return the function or class that ``entry`` is or names."""
    return pkgutil.resolve_name(entry) if isinstance(entry, str) else entry


def reader(name: str) -> type[Reader]:
    """Return the reader of kind ``name``; InputError where models of this kind are not served."""
    entry = kind(name).reader
    if entry is None:
        raise InputError(f"models that read {kind(name).reads} are not served: their kind '{name}' has no reader")
    return load(entry)


def module_of(entry: Entry) -> str:
    """Return the dotted name of the module that defines ``entry``; nothing is imported."""
    return entry.partition(":")[0] if isinstance(entry, str) else entry.__module__


def baselines_of(name: str, task: str) -> list[Baseline]:
    """Return the baselines of a kind that read data of a task; the first is the usual one."""
    return [baseline for baseline in kind(name).baselines if task in baseline.tasks]


def baselines() -> dict[str, Baseline]:
    """Return the baselines of all kinds by name."""
    return {baseline.name: baseline for name in available() for baseline in kind(name).baselines}
