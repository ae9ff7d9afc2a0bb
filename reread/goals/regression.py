"""A number per row: a target is float32 [m, 1], a prediction as well.

R2 is the share of the targets' variance that predictions explain, as scikit-learn has it: 1 for perfect ones, 0 for
the mean of the split. It has no unit, so it is what verdicts compare by; RMSE and MAE have the unit of the target.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import Array, Goal, Metric
from reread.storage.errors import InputError

LARGEST = float(np.finfo(np.float32).max)


def squares(prediction: Array, target: Array) -> Array:
    """Return the squared error of each row, the target and its square, float64 [m, 3].

    Targets are shifted by their mean, which leaves R2 as it is and keeps its digits.
    """
    truth = np.asarray(target, np.float64)[:, 0]
    error = np.asarray(prediction, np.float64)[:, 0] - truth
    centred = truth - truth.mean()
    return np.stack([error**2, centred, centred**2], axis=1)


def explained(sums: Array, items: Any) -> Array:
    """Return R2 of the sums of ``squares``; NaN where the targets are all equal."""
    variance = sums[..., 2] - sums[..., 1] ** 2 / items
    r2: Array = 1 - np.divide(sums[..., 0], variance, out=np.full(np.shape(variance), np.nan), where=variance > 0)
    return r2


def squared_errors(prediction: Array, target: Array) -> Array:
    """Return the squared error of each row, float64 [m, 1]."""
    return (np.asarray(prediction, np.float64) - np.asarray(target, np.float64)) ** 2


def absolute_errors(prediction: Array, target: Array) -> Array:
    """Return the absolute error of each row, float64 [m, 1]."""
    return np.abs(np.asarray(prediction, np.float64) - np.asarray(target, np.float64))


def root_mean(sums: Array, items: Any) -> Array:
    """Return the square root of the mean."""
    root: Array = np.sqrt(sums[..., 0] / items)
    return root


@dataclass(frozen=True, kw_only=True)
class Regression(Goal):
    """A number per row."""

    def targets(self, labels: Sequence[Sequence[float]], outputs: int) -> Array:
        """Return the numbers of rows as float32 [m, 1]."""
        return np.array(labels, dtype=np.float32).reshape(len(labels), outputs)

    def fault(self, labels: Sequence[Any]) -> str:
        number = labels[0] if len(labels) == 1 else None
        if isinstance(number, int | float) and not isinstance(number, bool) and abs(number) <= LARGEST:
            return ""
        return "it must be one finite number"

    def description(self, targets: Array) -> dict[str, Any]:
        """Return the mean and deviation by which objectives standardise; InputError where all are equal."""
        values = np.asarray(targets, np.float64)
        if not values.std():
            raise InputError("all rows of the training split have the same number: there is nothing to learn")
        return {"target_mean": float(values.mean()), "target_deviation": float(values.std())}

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return ``prediction``, the number of each row."""
        return {"prediction": predictions[:, 0].tolist()}

    def described(self, prediction: Array, outputs: Sequence[str]) -> list[tuple[str, float | None]]:
        return [(f"{float(prediction[0]):.4g}", None)]

    def named(self, target: Any, outputs: Sequence[str]) -> list[str]:
        return [f"{float(target[0]):.4g}"]

    def target_values(self, targets: Array, outputs: Sequence[str]) -> list[float]:
        values: list[float] = targets[:, 0].tolist()
        return values

    def stored_unjudged(self) -> str:
        return self.stored_as(self.names[0])


GOAL = Regression(
    task="regression",
    metrics=(
        Metric("r2", "R²", squares, explained, bounds=(-np.inf, 1.0)),
        Metric("rmse", "RMSE", squared_errors, root_mean, higher_is_better=False, bounds=(0.0, np.inf)),
        Metric("mae", "MAE", absolute_errors, higher_is_better=False, bounds=(0.0, np.inf)),
    ),
    shown=3,
    compared_by="r2",
    objective="squared_error",
)
