"""Goals: what a data set asks of its rows. reread/goals/TASK.py defines ``GOAL``, the Goal of the data sets whose
``task`` has its name, with "-" for "_".

A metric is a sum over items and a function of that sum. Its value, its resamples and its differences are this one
definition; a metric that is no function of sums, such as AUROC, has both methods of its own.

To add a goal is to add one file. NumPy is all that one needs: the loss is an objective's (models/objectives).

Shape legend: m items of a split, K outputs (classes, or the names of numbers), S statistics per item, n seeds, R
resamples.
"""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reread.storage.errors import InputError, nearest
from reread.storage.registry import Registry

Array = np.ndarray[Any, Any]
# The metric of n seeds in R resamples, float64 [R, n], from how often each drew each item, float64 [R, m].
Resampled = Callable[[Array], Array]

REGISTRY = Registry("reread.goals", "task", requires=("GOAL",))
# Tasks whose targets are class numbers.
LABELS = ("single-label", "multi-label")
# The array of items.npz that every metric can be computed of.
PREDICTIONS = "scores"


def mean(sums: Array, items: Array | float) -> Array:
    """Return the mean per item of the one statistic: sums float64 [..., 1], items [...]."""
    result: Array = sums[..., 0] / items
    return result


@dataclass(frozen=True)
class Metric:
    """A metric of predictions and targets of m items.

    statistics: f(prediction, target) -> float64 [m, S]; None where the metric is not defined on these items.
    reduce: f(sums of statistics float64 [..., S], number of items [...]) -> float64 [...].
    title: of a table's column. words: as a sentence has it; "": the title without its capital letter.
    bounds: the least and the largest value.
    """

    name: str
    title: str
    statistics: Callable[[Array, Array], Array | None]
    reduce: Callable[[Array, Any], Array] = mean
    higher_is_better: bool = True
    bounds: tuple[float, float] = (0.0, 1.0)
    words: str = ""

    def value(self, prediction: Array, target: Array) -> float | None:
        """Return the metric of all items; None where it is not defined."""
        parts = self.statistics(prediction, target)
        if parts is None:
            return None
        # Contiguous rows are added pairwise, as the mean of one array is.
        value = float(self.reduce(np.ascontiguousarray(parts.T).sum(axis=1), float(len(parts))))
        return value if np.isfinite(value) else None

    def resampled(self, predictions: Iterable[Array], target: Array) -> Resampled:
        """Return the metric of each seed as a function of how often each item was drawn, float64 [R, m] -> [R, n]."""
        by_seed = []
        for prediction in predictions:
            parts = self.statistics(prediction, target)
            if parts is None:
                raise InputError(f"{self.name} is not defined on these items")
            by_seed.append(parts)
        together = np.concatenate(by_seed, axis=1)  # [m, n * S]

        def of_counts(counts: Array) -> Array:
            sums = (counts @ together).reshape(len(counts), len(by_seed), -1)
            return self.reduce(sums, counts.sum(axis=1, keepdims=True))

        return of_counts


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The meaning of a task for targets, predictions and metrics.

    metrics: those of a whole split; the first chooses checkpoints, trials, seeds and champions.
    given: those that predictions do not have: scores of `reread judge` alone give their statistics.
    shown: how many of them tables show, from the first on.
    compared_by: the metric of the comparison that `reread try` makes.
    objective: the loss that networks are trained with unless their settings name another.
    """

    task: str
    metrics: tuple[Metric, ...]
    shown: int
    compared_by: str
    objective: str = "classification"
    given: tuple[Metric, ...] = ()

    @property
    def names(self) -> list[str]:
        """The names of the metrics of a whole split."""
        return [metric.name for metric in self.metrics]

    @property
    def shown_names(self) -> list[str]:
        return self.names[: self.shown]

    def metric(self, name: str, outputs: Sequence[str] = ()) -> Metric:
        """Return the metric ``name``, of the whole split or of one of ``outputs`` ("recall:CLASS"); InputError names
        the nearest."""
        known = {metric.name: metric for metric in self.metrics}
        measure, colon, output = name.partition(":")
        if colon and measure in self.output_titles() and output in outputs:
            return self.metric_of_output(measure, list(outputs).index(output))
        if name not in known:
            raise InputError(f"no metric '{name}' of {self.task} data: {nearest(name, known)}")
        return known[name]

    def comparison_metrics(self, outputs: Iterable[str]) -> list[str]:
        """Return every metric that a comparison may have: those of the whole split, and those of each output."""
        return [*self.names, *(f"{measure}:{output}" for output in outputs for measure in self.output_titles())]

    def output_titles(self) -> Mapping[str, str]:
        """Return the metrics that each output has by itself, with their titles."""
        return {}

    def metric_of_output(self, measure: str, number: int) -> Metric:
        """Return a metric of ``output_titles`` for output ``number``."""
        raise NotImplementedError

    def targets(self, labels: Sequence[Sequence[Any]], outputs: int) -> Array:
        """Return the targets of rows as an array whose first axis is the rows."""
        raise NotImplementedError

    def from_texts(self, predictions: Sequence[str], references: Sequence[str]) -> tuple[Array, Array]:
        """Return the predictions and the targets that texts are; NotImplementedError of a goal without texts."""
        raise NotImplementedError

    def fault(self, labels: Sequence[Any]) -> str:
        """Return what is wrong with a row's labels as a data set stores them, in words; "" where nothing is.

        Asked where ``beyond_labels``.
        """
        raise NotImplementedError

    def description(self, targets: Array) -> dict[str, Any]:
        """Return what prepared.json says of the training split's targets, for objectives; where ``beyond_labels``."""
        return {}

    def measure(
        self, predictions: Mapping[str, Array], targets: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the metrics of each split, as values that JSON can hold: at least ``rows`` and those of ``metrics``.

        InputError where a split has no row, shapes do not fit, or a prediction is not finite.
        """
        for split, prediction in predictions.items():
            refuse_unmeasurable(prediction, (len(targets[split]), len(outputs)))
        return {
            split: {
                "rows": len(targets[split]),
                **{metric.name: metric.value(prediction, targets[split]) for metric in self.metrics},
            }
            for split, prediction in predictions.items()
        }

    def reads_validation(self, name: str) -> bool:
        """Return whether ``judged`` reads the metrics of the validation split for a metric."""
        return False

    def judged(self, name: str, prediction: Array, validated: Mapping[str, Any]) -> Array:
        """Return the prediction that a metric reads. validated: the metrics of the same run on the validation split."""
        return prediction

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return the columns of a served model's answers, one entry per row of predictions float [n, K]."""
        raise NotImplementedError

    def described(self, prediction: Array, outputs: Sequence[str]) -> list[tuple[str, float | None]]:
        """Return the answers of one row, float [K], in words, each with its probability where it has one."""
        raise NotImplementedError

    def named(self, target: Any, outputs: Sequence[str]) -> list[str]:
        """Return one row's target in the words of ``described``."""
        raise NotImplementedError

    def target_values(self, targets: Array, outputs: Sequence[str]) -> list[Any]:
        """Return the targets of rows as values of a table."""
        return [self.named(target, outputs) for target in targets]

    def stored_as(self, name: str) -> str:
        """Return the array of items.npz that decides a metric, the smallest of ``encode``."""
        return PREDICTIONS

    def stored_unjudged(self) -> str | None:
        """Return the array of items.npz where no comparison judges a data set; None: none."""
        return None

    def encode(self, array: str, prediction: Array, target: Array) -> Array:
        """Return the array of a run in items.npz."""
        return prediction.astype(np.float32)

    def decode(self, array: str, values: Array, target: Array, outputs: int) -> Array:
        """Return what stands for a run's prediction: the metrics that ``array`` decides are those of the run."""
        return values


def available() -> list[str]:
    """Return the tasks in order. Files are parsed and not imported."""
    return [name.replace("_", "-") for name in REGISTRY.available()]


def beyond_labels(task: str) -> bool:
    """Return whether a task asks for something other than one label or several.

    Keys leave its branches out (reread/storage/numeric.py): those of such a task have its goal's module instead.
    """
    return task not in LABELS


def module_of(task: str) -> str:
    """Return the dotted name of the module that has a task's goal; nothing is imported."""
    return f"{REGISTRY.package}.{task.replace('-', '_')}"


@functools.cache
def goal(task: str) -> Goal:
    """Return the goal of a task; InputError names the nearest one where there is none."""
    member: Goal = REGISTRY.module(task.replace("-", "_")).GOAL
    return member


def metric_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric ``name`` of ``Goal.measure``, that of one output as well; None where it is not defined."""
    measure, colon, output = name.partition(":")
    value: float | None = metrics[measure][output] if colon else metrics[name]
    return value


@functools.cache
def _known() -> Mapping[str, Metric]:
    """The metrics of all goals by name; of a name that several have, the first."""
    goals = map(goal, reversed(available()))
    return {metric.name: metric for each in goals for metric in (*each.metrics, *each.given)}


def of_texts(name: str) -> Goal | None:
    """Return the goal that measures the metric ``name`` of texts; None where none does."""
    for known in map(goal, available()):
        if type(known).from_texts is not Goal.from_texts and name in known.names:
            return known
    return None


def known_metric(name: str) -> Metric | None:
    """Return the metric ``name`` of the first goal that has it; None where none has."""
    return _known().get(name)


@functools.cache
def output_titles() -> Mapping[str, str]:
    """Return the metrics that single outputs have in any goal, with their titles."""
    return {name: title for task in available() for name, title in goal(task).output_titles().items()}


def metric_title(name: str) -> str:
    """Return what a page calls a metric: "Macro F1", "Recall of CLASS"."""
    measure, colon, output = name.partition(":")
    return f"{output_titles()[measure]} of {output}" if colon else _known()[name].title


def metric_words(name: str) -> str:
    """Return a metric as a sentence has it: "macro F1", "AUROC of CLASS". A study's own metric is in words already."""
    if name not in _known() and ":" not in name:
        return name
    if name in _known() and _known()[name].words:
        return _known()[name].words
    title = metric_title(name)
    return title if title[1:2].isupper() or title[1:2].isdigit() else title[0].lower() + title[1:]


def bounds(name: str) -> tuple[float, float]:
    """Return the least and largest value of a metric."""
    return _known()[name].bounds if name in _known() else (0.0, 1.0)


def higher_is_better(name: str) -> bool:
    return name not in _known() or _known()[name].higher_is_better


def target_form(task: str, rows: int, outputs: int) -> tuple[type[np.generic], tuple[int, ...]]:
    """Return the dtype and the shape of the targets of so many rows."""
    form = goal(task).targets([[0] * outputs], outputs)
    return form.dtype.type, (rows, *form.shape[1:])


def refuse_targets(targets: Array, rows: int, task: str, outputs: int, where: Path) -> None:
    """Raise InputError where the targets of a task beyond labels have another shape or dtype, or one cannot be."""
    dtype, shape = target_form(task, rows, outputs)
    if targets.dtype != dtype or targets.shape != shape:
        raise InputError(
            f"{where}: targets are {np.dtype(dtype)} {list(shape)}, got {targets.dtype} {list(targets.shape)}: "
            "convert them"
        )
    for row, target in enumerate(targets.tolist()):
        if fault := goal(task).fault(target):
            raise InputError(f"{where}: the target of row {row} is {target}: {fault}")


def refuse_unmeasurable(prediction: Array, expected: tuple[int, int]) -> None:
    """Raise InputError where there is no row, the shape is another, or a value is not finite."""
    if not expected[0]:
        raise InputError("the split has no rows: nothing can be measured on it; give it some in the manifest")
    if prediction.shape != expected:
        raise InputError(f"predictions have shape {prediction.shape} where the targets need {expected}")
    if not np.isfinite(prediction).all():
        raise InputError(
            "a prediction is not finite: the weights of the run are broken; remove the run and train it again"
        )
