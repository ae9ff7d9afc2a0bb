"""items.npz: what each run predicted on each row of the evaluated split, so that anyone can compute verdicts again.

One NumPy archive without pickle (``numpy.load(path, allow_pickle=False)``), one array per run. Shape legend: m rows, K
classes, all rows of a data set in one order.

    DATA/classes        the names of the classes, text [K]
    DATA/labels         the labels of the rows, uint8 or uint16 [m]; of several labels uint8 [m, K]; of a
                        number float32 [m, 1]
    DATA/task           the task, text; absent where the dimensions of the labels say whether a row has one or several
    DATA/groups         the number of each row's group (film, patient), uint32 [m]; absent where no groups are known
    KIND/RUN_KEY        of a run, whose variant and seed are in runs.json and metrics.json
    KIND/DATA/BASELINE  of a baseline; of cross-validation KIND/DATA/BASELINE/SEED

KIND is the least that the metrics of the experiment's comparisons on that data set need:

    predicted   the number of the predicted class, uint8 or uint16 [m]: accuracy, recall, precision, F1 of one label
    matched     whether the most probable classes are the row's labels, packed bits uint8 [m / 8]: exact match
    ranks       the place of each probability among the distinct ones of its class, uint16 or uint32 [m, K]: AUROC
    scores      predictions, float32 [m, K]: every other metric, and several metrics that need different kinds

A data set of one label that no comparison judges has ``predicted``; one of several labels has no arrays of runs then.
The data set's goal (reread/goals) encodes and decodes them.
The module reads them without torch.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import reread.verdicts.items
from reread.goals import PREDICTIONS, Array, Metric, goal
from reread.goals.classification import smallest
from reread.storage.errors import InputError
from reread.storage.files import FROM_GIT, read_committed
from reread.storage.run_folder import FILES, METRICS, read_files
from reread.verdicts.resampling import RESAMPLES, item_spread_of
from reread.verdicts.rule import Side

ITEMS = "items.npz"
# What an archive has of a data set, after its name.
OF_DATA = ("classes", "labels", "groups", "task")
# The task by the number of dimensions of the labels, of a data set whose task is not written.
BY_DIMENSIONS = {1: "single-label", 2: "multi-label"}


def kind_for(metrics: Iterable[str], task: str) -> str | None:
    """Return the kind for the metrics that are judged on a data set; None where none is kept."""
    kinds = {goal(task).stored_as(metric) for metric in metrics}
    if not kinds:
        return goal(task).stored_unjudged()
    return kinds.pop() if len(kinds) == 1 else PREDICTIONS


def decides(kind: str | None, metric: str, task: str) -> bool:
    """Return whether an array of a kind is enough to compute a metric."""
    return kind in (PREDICTIONS, goal(task).stored_as(metric))


@dataclass(frozen=True)
class DataSet:
    """The evaluated rows of one data set: the targets of its goal, and groups int [m] where they are known."""

    task: str
    classes: Sequence[str]
    labels: np.ndarray = field(repr=False)
    groups: np.ndarray | None = field(repr=False)


def write_items(path: Path, data_sets: Mapping[str, DataSet], arrays: Mapping[str, np.ndarray]) -> None:
    """Write items.npz; ``arrays`` by KIND/RUN_KEY or KIND/DATA/BASELINE."""
    content = dict(arrays)
    for name, data in data_sets.items():
        content[f"{name}/classes"] = np.array(data.classes, str)
        whole_numbers = np.issubdtype(data.labels.dtype, np.integer)
        content[f"{name}/labels"] = smallest(data.labels) if whole_numbers else data.labels
        if data.task not in BY_DIMENSIONS.values():
            content[f"{name}/task"] = np.array(data.task)
        if data.groups is not None:
            content[f"{name}/groups"] = np.unique(data.groups, return_inverse=True)[1].astype(np.uint32)
    np.savez_compressed(path, allow_pickle=False, **dict(sorted(content.items())))


@dataclass(frozen=True)
class Recomputed:
    """A comparison from published items: both sides' scores by seed, and the error that the choice of items leaves.

    A baseline and a published figure have one score and no seed. A baseline of cross-validation has one per seed.
    """

    treatment: Side
    control: Side
    items: reread.verdicts.items.Items


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """Raise InputError where an archive of arrays cannot be read inside the block."""
    try:
        yield
    except Exception as error:  # whatever zipfile, zlib and numpy raise
        raise InputError(f"{path} cannot be read ({error or type(error).__name__}): {FROM_GIT}") from None


class Items:
    """The published items of an experiment, results/NAME. Arrays are read when they are asked for."""

    def __init__(self, folder: Path):
        self.path = Path(folder) / ITEMS
        with readable(self.path):
            self.arrays = np.load(self.path, allow_pickle=False)
        names = [name for name in self.arrays.files if name.rpartition("/")[2] not in OF_DATA]
        self.kinds = {name.partition("/")[2]: name.partition("/")[0] for name in names}

    def equals(self, other: "Items") -> bool:
        """Return whether the other archive has the same arrays."""
        with readable(self.path):
            return self.arrays.files == other.arrays.files and all(
                np.array_equal(self.arrays[name], other.arrays[name]) for name in self.arrays.files
            )

    def data_set(self, name: str) -> DataSet:
        """Return the rows of a data set."""
        groups, task = f"{name}/groups", f"{name}/task"
        with readable(self.path):
            labels = self.arrays[f"{name}/labels"]
            return DataSet(
                str(self.arrays[task]) if task in self.arrays.files else BY_DIMENSIONS[labels.ndim],
                self.arrays[f"{name}/classes"].tolist(),
                labels,
                self.arrays[groups] if groups in self.arrays.files else None,
            )

    def kind(self, name: str) -> str | None:
        """Return the kind of a run (by its key) or of a baseline (DATA/BASELINE); None where it has no array."""
        return self.kinds.get(name)

    def array(self, name: str) -> np.ndarray:
        """Return the array of a run or a baseline."""
        with readable(self.path):
            return self.arrays[f"{self.kinds[name]}/{name}"]

    def probabilities(self, name: str, data: DataSet, metric: str) -> np.ndarray | None:
        """Return what stands for the probabilities of a run or a baseline; None where they do not decide the metric."""
        kind = self.kind(name)
        if kind is None or not decides(kind, metric, data.task):
            return None
        return goal(data.task).decode(kind, self.array(name), data.labels, len(data.classes))


def item_spread(
    metric: Metric,
    treatment: Sequence[Array],
    control: Sequence[Array],
    target: Array,
    resamples: int = RESAMPLES,
    groups: Sequence[Any] | Array | None = None,
) -> reread.verdicts.items.Items:
    """Return what the choice of items leaves in the difference of the two sides' mean metrics.

    treatment, control: the predictions of each seed for the same m items; a baseline has one. A published figure has
    none: it does not vary with the items, so all of the other side's own variance over them counts. groups: the group
    of each item, [m] of any comparable type (patient, film, source file); None: each item alone.
    """
    first, second = ([metric.resampled(side, target)] if side else [] for side in (treatment, control))
    return item_spread_of(first, second, len(target), resamples, groups)


def open_items(folder: Path) -> Items | None:
    """Return the items of published results; None where they have none.

    InputError where the file cannot be read, or is gone: it is published with the small files of the runs.
    """
    path = Path(folder) / ITEMS
    if path.is_file():
        return Items(folder)
    if (Path(folder) / FILES).is_file():
        raise InputError(f"{path} is missing, and only the published scores are left: {FROM_GIT}")
    return None


def recompute(folder: Path, comparison: Mapping[str, Any]) -> Recomputed | None:
    """Return what the items in results/NAME give for one of the comparisons in its plan.json.

    comparison: treatment, control, metric and, of a published figure, ``reference``. None where the items are not
    published, or do not decide the metric.
    """
    items = open_items(folder)
    if items is None:
        return None
    metrics = read_committed(Path(folder) / METRICS, "variants", "evaluated_on")
    variants, metric, reference = metrics["variants"], comparison["metric"], comparison.get("reference")
    names = [comparison["treatment"], comparison["control"]]
    networks = [name for name in names if name in variants]
    if not networks:
        return None
    data_name = variants[networks[0]]["data"]
    data = items.data_set(data_name)
    asked = goal(data.task)
    measure, tuned = asked.metric(metric, data.classes), asked.reads_validation(metric)
    validated = read_files(Path(folder) / FILES) if tuned else {}

    def of_run(name: str, seed: int) -> np.ndarray | None:
        key = variants[name]["seeds"][str(seed)]["run_key"]
        predictions = items.probabilities(key, data, metric)
        if predictions is None or key not in validated:
            return predictions
        return asked.judged(metric, predictions, validated[key]["metrics"]["validation"])

    def side(name: str) -> tuple[Side, list[np.ndarray]] | None:
        if name not in variants and reference is not None:
            return Side([float(reference)]), []
        about = variants[name] if name in variants else metrics["baselines"].get(data_name, {}).get(name, {})
        seeds = sorted(map(int, about.get("seeds", ())))
        if name in variants:
            predictions = [of_run(name, seed) for seed in seeds]
        elif seeds:
            predictions = [
                None if tuned else items.probabilities(f"{data_name}/{name}/{seed}", data, metric) for seed in seeds
            ]
        else:
            predictions = [None if tuned else items.probabilities(f"{data_name}/{name}", data, metric)]
        known = [prediction for prediction in predictions if prediction is not None]
        if not known or len(known) < len(predictions):
            return None
        scores = [score for prediction in known if (score := measure.value(prediction, data.labels)) is not None]
        return (Side(scores, seeds), known) if len(scores) == len(known) else None

    treatment, control = map(side, names)
    if treatment is None or control is None:
        return None
    spread = item_spread(measure, treatment[1], control[1], data.labels, groups=data.groups)
    return Recomputed(treatment[0], control[0], spread)
