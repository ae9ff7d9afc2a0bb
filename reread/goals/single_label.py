"""One label per row: a target is the number of its class, int32 [m]; a prediction the probabilities, float32 [m, K]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import PREDICTIONS, Array, Metric
from reread.goals.classification import PREDICTED, Classification, most_probable, one_hot, shared_metrics, smallest

# Metrics of one label that the predicted classes do not decide; AUROC has an array of its own.
OF_PROBABILITIES = ("loss", "expected_calibration_error")
SHARED = shared_metrics(most_probable)


def is_right(probabilities: Array, labels: Array) -> Array:
    """Return 1 where the most probable class is the label, float64 [m, 1]."""
    right: Array = (probabilities.argmax(axis=1) == labels)[:, None]
    return right.astype(np.float64)


@dataclass(frozen=True, kw_only=True)
class SingleLabel(Classification):
    """One label per row."""

    def targets(self, labels: Sequence[Sequence[int]], outputs: int) -> Array:
        """Return the class numbers of rows as int32 [m]."""
        return np.array([row[0] for row in labels], dtype=np.int32)

    def measure(
        self, predictions: Mapping[str, Array], targets: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the metrics of each split, and ``confusion``, how often each class was predicted for each."""
        measured = super().measure(predictions, targets, outputs)
        size = len(outputs)
        for split, probabilities in predictions.items():
            cells = np.ravel_multi_index((np.asarray(targets[split]), probabilities.argmax(axis=1)), (size, size))
            measured[split]["confusion"] = np.bincount(cells, minlength=size**2).reshape(size, -1).tolist()
        return measured

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return label and probability as one value per row, and probabilities by class."""
        columns = super().columns(predictions, outputs)
        return {**columns, **{name: [row[0] for row in columns[name]] for name in ("label", "probability")}}

    def target_values(self, targets: Array, outputs: Sequence[str]) -> list[str]:
        return [outputs[number] for number in targets]

    def stored_as(self, name: str) -> str:
        array = super().stored_as(name)
        return PREDICTED if array == PREDICTIONS and name not in OF_PROBABILITIES else array

    def stored_unjudged(self) -> str:
        return PREDICTED

    def encode(self, array: str, prediction: Array, target: Array) -> Array:
        if array == PREDICTED:
            return smallest(prediction.argmax(axis=1))
        return super().encode(array, prediction, target)

    def decode(self, array: str, values: Array, target: Array, outputs: int) -> Array:
        """A predicted class has the probability 1."""
        if array == PREDICTED:
            return one_hot(values, outputs).astype(np.float32)
        return super().decode(array, values, target, outputs)


GOAL = SingleLabel(
    task="single-label",
    metrics=(
        Metric("accuracy", "Accuracy", is_right),
        SHARED["macro_f1"],
        SHARED["loss"],
        SHARED["expected_calibration_error"],
        SHARED["macro_auroc"],
        SHARED["macro_recall"],
        SHARED["macro_precision"],
    ),
    shown=4,
    compared_by="accuracy",
    decide=most_probable,
)
