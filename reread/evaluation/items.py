"""items.npz: what each run predicted on each row of the evaluated split, so that anyone can compute verdicts again.

One NumPy archive without pickle (``numpy.load(path, allow_pickle=False)``), one array per run. Shape legend: m rows, K
classes, all rows of a data set in one order.

    DATA/classes        the names of the classes, text [K]
    DATA/labels         the labels of the rows, uint8 or uint16 [m]; of several labels uint8 [m, K]
    DATA/groups         the number of each row's group (film, patient), uint32 [m]; absent where no groups are known
    KIND/RUN_KEY        of a run, whose variant and seed are in runs.json and metrics.json
    KIND/DATA/BASELINE  of a baseline

KIND is the least that the metrics of the experiment's comparisons on that data set need:

    predicted   the number of the predicted class, uint8 or uint16 [m]: accuracy, recall, precision, F1 of one label
    matched     whether the most probable classes are the row's labels, packed bits uint8 [m / 8]: exact match
    ranks       the place of each probability among the distinct ones of its class, uint16 or uint32 [m, K]: AUROC
    scores      probabilities, float32 [m, K]: every other metric, and several metrics that need different kinds

A data set of one label that no comparison judges has ``predicted``; one of several labels has no arrays of runs then.
The module reads them without torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import reread.verdicts.items
from reread.evaluation.bootstrap import item_spread, resampled_metric
from reread.evaluation.metrics import TUNED, exact_matches, one_hot, thresholds_of
from reread.storage.errors import InputError
from reread.storage.files import read_object
from reread.storage.run_folder import FILES, METRICS, read_files
from reread.verdicts.resampling import RESAMPLES
from reread.verdicts.rule import Side

ITEMS = "items.npz"
PREDICTED, MATCHED, RANKS, SCORES = KINDS = ("predicted", "matched", "ranks", "scores")
# Metrics of one label that the predicted classes do not decide; AUROC has a kind of its own.
OF_PROBABILITIES = ("loss", "expected_calibration_error")


def kind_of(metric: str, task: str) -> str:
    """Return the kind of array that decides a metric."""
    measure = metric.partition(":")[0]
    if measure.endswith("auroc"):
        return RANKS
    if measure == "exact_match":
        return MATCHED
    return PREDICTED if task == "single-label" and measure not in OF_PROBABILITIES else SCORES


def kind_for(metrics: Iterable[str], task: str) -> str | None:
    """Return the kind for the metrics that are judged on a data set; None where several labels have no such metric."""
    kinds = {kind_of(metric, task) for metric in metrics}
    if not kinds:
        return PREDICTED if task == "single-label" else None
    return kinds.pop() if len(kinds) == 1 else SCORES


def decides(kind: str | None, metric: str, task: str) -> bool:
    """Return whether an array of a kind is enough to compute a metric."""
    return kind in (SCORES, kind_of(metric, task))


def encoded(kind: str, probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the array of a run: probabilities float32 [m, K], labels int [m] or uint8 [m, K]."""
    if kind == PREDICTED:
        return _small(probabilities.argmax(axis=1))
    if kind == MATCHED:
        found = exact_matches(probabilities, one_hot(labels, probabilities.shape[1]))
        if found is None:
            raise InputError("exact match is not defined where rows have different numbers of labels")
        return np.packbits(found)
    if kind == RANKS:
        return _small(np.stack([np.unique(column, return_inverse=True)[1] for column in probabilities.T], axis=1), 2)
    return probabilities.astype(np.float32)


def decoded(kind: str, array: np.ndarray, labels: np.ndarray, classes: int) -> np.ndarray:
    """Return float32 [m, K] in place of a run's probabilities: the metrics that ``kind`` decides are those of the run.

    The others are not: a predicted class has the probability 1, and the probabilities of ranks only have their order.
    """
    if kind == PREDICTED:
        return one_hot(array, classes).astype(np.float32)
    if kind == MATCHED:
        truth = one_hot(labels, classes)
        matched = np.unpackbits(array, count=len(truth)).astype(bool)
        return np.where(matched[:, None], truth, ~truth).astype(np.float32)
    # float32 has 24 bits: the ranks of up to 16 million rows stay apart.
    return (array / 2**24).astype(np.float32) if kind == RANKS else array


def _small(numbers: np.ndarray, least: int = 1) -> np.ndarray:
    """Return whole numbers from 0 in the smallest unsigned type that holds them, of at least ``least`` bytes."""
    return numbers.astype(np.promote_types(np.min_scalar_type(int(numbers.max(initial=0))), f"u{least}"))


@dataclass(frozen=True)
class DataSet:
    """The evaluated rows of one data set: labels int [m] or uint8 [m, K], and groups int [m] where they are known."""

    classes: Sequence[str]
    labels: np.ndarray = field(repr=False)
    groups: np.ndarray | None = field(repr=False)

    @property
    def task(self) -> str:
        return "single-label" if self.labels.ndim == 1 else "multi-label"


def write_items(path: Path, data_sets: Mapping[str, DataSet], arrays: Mapping[str, np.ndarray]) -> None:
    """Write items.npz; ``arrays`` by KIND/RUN_KEY or KIND/DATA/BASELINE."""
    content = dict(arrays)
    for name, data in data_sets.items():
        content[f"{name}/classes"] = np.array(data.classes, str)
        content[f"{name}/labels"] = _small(data.labels)
        if data.groups is not None:
            content[f"{name}/groups"] = np.unique(data.groups, return_inverse=True)[1].astype(np.uint32)
    np.savez_compressed(path, allow_pickle=False, **dict(sorted(content.items())))


@dataclass(frozen=True)
class Recomputed:
    """What the published items give for a comparison: both sides' scores by seed, and what the choice of items leaves.

    A baseline and a published figure have one score and no seed.
    """

    treatment: Side
    control: Side
    items: reread.verdicts.items.Items


class Items:
    """The published items of an experiment, results/NAME. Arrays are read when they are asked for."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        self.arrays = np.load(self.folder / ITEMS, allow_pickle=False)
        self.kinds = {
            one.partition("/")[2]: one.partition("/")[0] for one in self.arrays.files if one.startswith(KINDS)
        }

    def equals(self, other: "Items") -> bool:
        """Return whether the other archive has the same arrays."""
        return self.arrays.files == other.arrays.files and all(
            np.array_equal(self.arrays[name], other.arrays[name]) for name in self.arrays.files
        )

    def data_set(self, name: str) -> DataSet:
        """Return the rows of a data set."""
        groups = f"{name}/groups"
        return DataSet(
            self.arrays[f"{name}/classes"].tolist(),
            self.arrays[f"{name}/labels"],
            self.arrays[groups] if groups in self.arrays.files else None,
        )

    def kind(self, name: str) -> str | None:
        """Return the kind of a run (by its key) or of a baseline (DATA/BASELINE); None where it has no array."""
        return self.kinds.get(name)

    def array(self, name: str) -> np.ndarray:
        """Return the array of a run or a baseline."""
        return self.arrays[f"{self.kinds[name]}/{name}"]

    def probabilities(self, name: str, data: DataSet, metric: str) -> np.ndarray | None:
        """Return what stands for the probabilities of a run or a baseline; None where they do not decide the metric."""
        kind = self.kind(name)
        if kind is None or not decides(kind, metric, data.task):
            return None
        return decoded(kind, self.array(name), data.labels, len(data.classes))


def open_items(folder: Path) -> Items | None:
    """Return the items of published results; None where they have none. InputError where the file cannot be read."""
    path = Path(folder) / ITEMS
    if not path.is_file():
        return None
    try:
        return Items(folder)
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it from git") from None


def recompute(folder: Path, comparison: Mapping[str, Any], resamples: int = RESAMPLES) -> Recomputed | None:
    """Return what the items in results/NAME give for one of the comparisons in its plan.json.

    comparison: treatment, control, metric and, of a published figure, ``reference``. None where the items are not
    published, or do not decide the metric.
    """
    items = open_items(folder)
    if items is None:
        return None
    metrics = read_object(Path(folder) / METRICS, "variants", "evaluated_on")
    variants, metric, reference = metrics["variants"], comparison["metric"], comparison.get("reference")
    names = [comparison["treatment"], comparison["control"]]
    networks = [name for name in names if name in variants]
    if not networks:
        return None
    data_name = variants[networks[0]]["data"]
    data = items.data_set(data_name)
    validated = read_files(Path(folder) / FILES) if metric in TUNED else {}

    def of_run(name: str, seed: int) -> np.ndarray | None:
        key = variants[name]["seeds"][str(seed)]["run_key"]
        found = items.probabilities(key, data, metric)
        chosen = thresholds_of(validated[key]["metrics"]["validation"]) if key in validated else None
        return found if found is None or chosen is None else chosen.decide(metric, found)

    def side(name: str) -> tuple[Side, list[np.ndarray]] | None:
        if name not in variants and reference is not None:
            return Side([float(reference)]), []
        seeds = sorted(map(int, variants[name]["seeds"])) if name in variants else []
        if name in variants:
            found = [of_run(name, seed) for seed in seeds]
        else:
            found = [None if metric in TUNED else items.probabilities(f"{data_name}/{name}", data, metric)]
        known = [one for one in found if one is not None]
        if not known or len(known) < len(found):
            return None
        whole = np.ones((1, len(data.labels)))
        resampled = (resampled_metric(metric, one, data.labels, data.task, data.classes) for one in known)
        return Side([float(one(whole)[0]) for one in resampled], seeds), known

    treatment, control = map(side, names)
    if treatment is None or control is None:
        return None
    spread = item_spread(treatment[1], control[1], data.labels, data.task, metric, resamples, data.groups, data.classes)
    return Recomputed(treatment[0], control[0], spread)
