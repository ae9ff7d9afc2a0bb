"""Symbols: sequences in which the first few symbols are to be remembered over a lag of others, and then recalled.

It is the copying memory problem of Arjovsky, Shah and Bengio 2016, arXiv 1511.06464 (after Hochreiter and Schmidhuber
1997), made harder by distractors: the symbols of the lag are of the same alphabet.

Raw rows hold as many symbols as the longest lag needs; ``lag`` of the settings truncates them, so that the same rows
are read at every lag. A row of the training split has a lag between 1 and ``lag``, evenly in its logarithm, so that a
network can begin with what it can reach; a row of the other splits has ``lag`` itself.

Each code of a sequence is 0 where it has ended, 1 to A for a distractor, A + 1 to 2 A for a symbol to be remembered,
and 2 A + 1 for a request. Targets are the symbols to be remembered, by position (reread/goals/symbols.py).

Shape legend: N rows, A symbols of the alphabet, P positions, L the longest lag, T codes of the longest sequence.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np

from reread.kinds import Kind, RawRows
from reread.storage.errors import InputError
from reread.storage.prepared import SPLITS
from reread.storage.settings import Range

FILES = ("symbols", "lag_shares", "split")


@dataclass(frozen=True)
class Settings:
    """lag: symbols between those to be remembered and the requests."""

    lag: Annotated[int, Range(1)] = 100


@dataclass(frozen=True)
class SymbolRows:
    """The rows that a source makes.

    symbols uint8 [N, P + L], each below A; lag_shares float64 [N] from 0 to 1, the share of the logarithm of the lag
    that a row of the training split has; split uint8 [N], 0 to 2 in the order of SPLITS; positions: P.
    """

    about: Any
    symbols: np.ndarray
    lag_shares: np.ndarray
    split: np.ndarray
    positions: int
    kind: ClassVar[str] = "symbols"


@dataclass(frozen=True)
class SymbolDataSet:
    """An opened data set; arrays as SymbolRows has them."""

    name: str
    directory: Path
    entry: Any

    def array(self, name: str) -> np.ndarray:
        return np.load(self.directory / f"{name}.npy", allow_pickle=False)

    @property
    def split(self) -> np.ndarray:
        return self.array("split")

    @property
    def labels(self) -> np.ndarray:
        return self.array("labels")

    def groups(self) -> None:
        """Return None: rows are drawn independently."""

    def read(self, rows: Sequence[int]) -> np.ndarray:
        """Return the symbols of ``rows``, uint8 [n, P + L]."""
        return self.array("symbols")[np.asarray(rows, np.int64)]

    def changes(self, rows: SymbolRows) -> str:
        return f"rows {len(self.split)} -> {len(rows.split)}"


def write(name: str, directory: Path, rows: SymbolRows) -> RawRows:
    """Write the arrays and labels.npy, uint8 [N, P], by split and then by the sha256 of the row."""
    digests = [
        hashlib.sha256(split.tobytes() + share.astype("<f8").tobytes() + symbols.tobytes()).digest()
        for symbols, share, split in zip(rows.symbols, rows.lag_shares, rows.split, strict=True)
    ]
    order = sorted(range(len(digests)), key=lambda row: (rows.split[row], digests[row]))
    arrays = {file: np.ascontiguousarray(getattr(rows, file)[order]) for file in FILES}
    arrays["labels"] = np.ascontiguousarray(arrays["symbols"][:, : rows.positions])
    for file, array in arrays.items():
        np.save(directory / f"{file}.npy", array, allow_pickle=False)
    contents = {"exact": (row.tobytes() for row in arrays["symbols"])}
    return RawRows([digests[row] for row in order], arrays["labels"], arrays["split"], contents=contents)


def prepare(data: SymbolDataSet, settings: Settings, working: Path) -> dict[str, Any]:
    """Write codes.npy uint8 [N, T], labels.npy and raw_indices.npy; return ``splits`` and ``alphabet``, which is A.

    T is 2 P + ``lag``. InputError for a lag that is longer than the raw rows.
    """
    symbols, labels = data.array("symbols"), data.labels
    positions = labels.shape[1]
    alphabet, longest = len(data.entry.classes) // positions, symbols.shape[1] - positions
    if settings.lag > longest:
        raise InputError(f"preprocessing.{data.name}: lag is {settings.lag}: its rows have lags up to {longest}")
    training = data.split == SPLITS.index("train")
    lags = np.where(training, np.rint(settings.lag ** data.array("lag_shares")).astype(np.int64), settings.lag)[:, None]
    place = np.arange(2 * positions + settings.lag)
    padded = np.pad(symbols, ((0, 0), (0, positions)))[:, : len(place)].astype(np.int64)
    codes = np.where(place < positions, alphabet + 1 + padded, 1 + padded)
    codes = np.where(place >= positions + lags, 2 * alphabet + 1, codes)
    codes[place >= 2 * positions + lags] = 0
    stops = np.cumsum(np.bincount(data.split, minlength=len(SPLITS))).tolist()
    np.save(working / "codes.npy", codes.astype(np.uint8), allow_pickle=False)
    np.save(working / "labels.npy", labels, allow_pickle=False)
    np.save(working / "raw_indices.npy", np.arange(len(labels)), allow_pickle=False)
    splits = {split: [start, stop] for split, start, stop in zip(SPLITS, [0, *stops], stops, strict=False)}
    return {"splits": splits, "alphabet": alphabet}


KIND = Kind(
    row="sequence",
    reads="sequences of symbols",
    write_raw=write,
    open_raw=SymbolDataSet,
    settings=Settings,
    prepare=prepare,
    collator="reread.batches.array:Collator",
    row_array="codes",
)
