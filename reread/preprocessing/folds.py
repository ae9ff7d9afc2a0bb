"""Cross-validation: the rows of a data set in K folds, each of which is the test split of one run.

A repetition, named by its seed, draws the folds anew and has K runs. Run ``number`` of them tests on the fold of its
number and validates on the next one, after the last on the first; the other K - 2 train. So a repetition tests each row
once and validates on each row once. The split that the data set has itself is not used.

Rows of one group, and rows of equal content, are in one fold. As far as that leaves it, each fold has its share of each
class, and folds are equally large (stratified; Kohavi 1995, "A study of cross-validation and bootstrap for accuracy
estimation and model selection"). The same rows and seed give the same folds on any machine.

Shape legend: N rows, K folds.
"""

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from reread import goals
from reread.kinds import RawDataSet
from reread.preprocessing.manifest import DataSetEntry
from reread.preprocessing.raw_images import ImageDataSet
from reread.preprocessing.raw_text import DOCUMENTS, TextDataSet, document_line
from reread.preprocessing.settings import FOLD
from reread.storage.errors import InputError
from reread.storage.files import content_key
from reread.storage.numeric import numeric_digest
from reread.storage.prepared import SPLITS

if TYPE_CHECKING:
    from typing import TypeGuard

# One fold tests, one validates, and one or more train.
FEWEST = 3
TRAIN, VALIDATION, TEST = range(len(SPLITS))


@dataclass(frozen=True)
class Fold:
    """One run of a repetition: its ``number``, from 1 to ``count``, of the folds that ``seed`` draws."""

    count: int
    seed: int
    number: int

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """Return the fold that the settings of a preparation name."""
        return cls(**settings[FOLD])

    def split(self, folds: np.ndarray) -> np.ndarray:
        """Return the split of each row, uint8 [N] in the order of SPLITS, by its fold, int [N] from 0."""
        splits = np.full(len(folds), TRAIN, np.uint8)
        splits[folds == self.number % self.count] = VALIDATION
        splits[folds == self.number - 1] = TEST
        return splits


def folds_of(count: int, seed: int) -> list[Fold]:
    """Return the runs of a repetition."""
    return [Fold(count, seed, number) for number in range(1, count + 1)]


def asked(settings: Mapping[str, Any] | None) -> "TypeGuard[Mapping[str, Any]]":
    """Return whether the settings of a preparation name a fold.

    Keys leave its branches out (reread/storage/numeric.py): that of a fold has this module's source instead.
    """
    return bool(settings) and FOLD in settings  # type: ignore[operator]


def key(of_whole: str, fold: Fold) -> str:
    """Return the name of a fold's folder in prepared/; ``of_whole``: by the data set's own split."""
    return content_key(
        {"whole": of_whole, FOLD: asdict(fold), "source": numeric_digest(["reread.preprocessing.folds"])}
    )


def with_split(data: RawDataSet, fold: Fold, folder: Path) -> RawDataSet:
    """Return a data set with the splits of a fold; what has to be written for that is in ``folder``, a new one.

    InputError where a class has fewer rows than there are folds, and for a kind of data that has no folds.
    """
    grouping = data.groups()
    split = fold.split(draw(data, None if grouping is None else grouping[0], fold.count, fold.seed))
    folder.mkdir()
    counts = np.bincount(split, minlength=len(SPLITS)).tolist()
    entry = replace(data.entry, splits=dict(zip(SPLITS, counts, strict=True)))
    changed: RawDataSet = split_again(data, split, entry, folder)
    return changed


@functools.singledispatch
def split_again(data: Any, split: np.ndarray, entry: DataSetEntry, folder: Path) -> Any:
    """Return a data set with other splits; a kind of data registers its class here."""
    raise InputError(f"data set '{data.name}' is of kind '{entry.kind}', which has no folds: remove 'folds'")


@split_again.register
def split_text(data: TextDataSet, split: np.ndarray, entry: DataSetEntry, folder: Path) -> TextDataSet:
    with open(folder / DOCUMENTS, "wb") as file:
        for place, document in zip(split, data.documents(), strict=True):
            file.write(document_line(document._replace(split=SPLITS[place])) + b"\n")
    return replace(data, directory=folder, entry=entry)


@split_again.register
def split_images(data: ImageDataSet, split: np.ndarray, entry: DataSetEntry, folder: Path) -> ImageDataSet:
    return replace(data, split=split, entry=entry)


def draw(data: RawDataSet, groups: np.ndarray | None, count: int, seed: int) -> np.ndarray:
    """Return the fold of each row of a data set, int64 [N] from 0; groups: int64 [N], None where none are known.

    InputError where a class is in fewer rows, or groups of them, than there are folds.
    """
    units = units_of(contents(data.read(range(len(data.labels)))), groups)
    labels, task = np.asarray(data.labels), data.entry.task
    if goals.beyond_labels(task):
        refuse_few(len(np.unique(units)), count, f"data set '{data.name}' has")
        # Rows of neighbouring targets are a stratum.
        ranks = np.argsort(np.argsort(labels.reshape(len(labels), -1)[:, 0], kind="stable"), kind="stable")
        return assign(ranks // count, units, count, seed)
    has = labels[:, None] == np.arange(len(data.entry.classes)) if labels.ndim == 1 else labels.astype(bool)
    for name, rows in zip(data.entry.classes, has.T, strict=True):
        if rows.any():
            refuse_few(len(np.unique(units[rows])), count, f"data set '{data.name}': class '{name}' is in")
    # Of several labels the rarest decides; rows without any are a stratum of their own.
    rarity = np.append(has.sum(axis=0), len(has))
    strata = np.argmin(np.where(np.pad(has, ((0, 0), (0, 1)), constant_values=True), rarity, len(has) + 1), axis=1)
    return assign(strata, units, count, seed)


def refuse_few(rows: int, count: int, where: str) -> None:
    """Raise InputError where there are fewer independent rows than folds."""
    if rows < count:
        raise InputError(
            f"{where} {rows} row{'s' * (rows != 1)} (a group and its copies count once), and folds is {count}: "
            + ("each fold needs one, give fewer folds" if rows >= FEWEST else "leave it out, or add rows of it")
        )


def contents(rows: Sequence[str] | np.ndarray) -> np.ndarray:
    """Return the number of each row's content, int64 [N]: equal for texts of the same bytes, or images."""
    digests = [
        hashlib.sha256(row.encode("utf-8", "surrogatepass") if isinstance(row, str) else row.tobytes()).digest()
        for row in rows
    ]
    return np.unique(np.array(digests, "V32"), return_inverse=True)[1].reshape(-1)


def units_of(content: np.ndarray, groups: np.ndarray | None) -> np.ndarray:
    """Return the number of what stays together, int64 [N]: rows that a chain of groups and equal contents connects."""
    units = content
    while groups is not None:
        least = lowest(lowest(units, groups), content)
        if np.array_equal(least, units):
            break
        units = least
    return units


def lowest(values: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return of each row the lowest value among those with the same number in ``of``."""
    minima = np.full(int(of.max()) + 1, values.max())
    np.minimum.at(minima, of, values)
    return minima[of]


def assign(strata: np.ndarray, units: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Return the fold of each row, int64 [N] from 0: the largest units first, in random order where they are equal.

    strata, units: int [N]. A unit's stratum is the rarest of its rows. It goes to the fold that has the fewest rows of
    it, then to the one that has the fewest rows.
    """
    rng = np.random.default_rng(seed)
    rarity = np.bincount(strata)
    names, number, sizes = np.unique(units, return_inverse=True, return_counts=True)
    by_rarity = np.lexsort((strata, rarity[strata]))[::-1]
    of_unit = np.zeros(len(names), np.int64)
    of_unit[number[by_rarity]] = strata[by_rarity]  # the rarest comes last
    shuffled = rng.permutation(len(names))
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    ties = rng.permutation(count)
    filled, totals = np.zeros((len(rarity), count), np.int64), np.zeros(count, np.int64)
    chosen = np.zeros(len(names), np.int64)
    for unit in order:
        stratum = of_unit[unit]
        chosen[unit] = np.lexsort((ties, totals, filled[stratum]))[0]
        filled[stratum, chosen[unit]] += sizes[unit]
        totals[chosen[unit]] += sizes[unit]
    return chosen[number]
