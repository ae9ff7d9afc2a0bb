"""Temperature scaling: a served model's probabilities with the confidence that validation bears out.

Source: Guo, Pleiss, Sun and Weinberger 2017, On Calibration of Modern Neural Networks, section 4.2. The softmax of
logits / T is p^(1/T), normalised, so probabilities are enough. The most probable class stays the same.

Shape legend: m rows, K classes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reread.goals import goal
from reread.storage.arrays import Float64Array, Int64Array
from reread.storage.prepared import Prepared

# Confidence beyond these is not of use: a model that is right on all of few rows asks for no doubt at all.
LEAST, MOST = 0.1, 10.0


@dataclass(frozen=True)
class Calibration:
    """A temperature, and the expected calibration error of the rows of validation without and with it."""

    temperature: float
    error: float
    error_with_temperature: float


def tempered(probabilities: Any, temperature: float) -> Float64Array:
    """Return probabilities [m, K] at another temperature, float64 [m, K]: above 1 less confident."""
    logits = np.log(np.maximum(np.asarray(probabilities, np.float64), np.finfo(np.float64).tiny)) / temperature
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    scaled: Float64Array = powers / powers.sum(axis=1, keepdims=True)
    return scaled


def fitted_temperature(probabilities: Any, labels: Int64Array) -> float:
    """Return the temperature with the smallest log loss of labels [m], from LEAST to MOST."""
    from scipy.optimize import minimize_scalar

    def loss(log_temperature: float) -> float:
        chosen = tempered(probabilities, np.exp(log_temperature))[np.arange(len(labels)), labels]
        return float(-np.log(np.maximum(chosen, np.finfo(np.float64).tiny)).mean())

    minimum = minimize_scalar(loss, bounds=(np.log(LEAST), np.log(MOST)), method="bounded", options={"xatol": 1e-4})
    return float(np.exp(minimum.x))


def calibration_of(folder: Path, prepared: Prepared) -> Calibration | None:
    """Fit the temperature of a model on validation. None for another goal than one label, and without probabilities.

    folder: its evaluation, with the probabilities of validation in validation.npy.
    """
    path = folder / "validation.npy"
    if prepared.task != "single-label" or not path.is_file():
        return None
    probabilities, labels = np.load(path, allow_pickle=False), prepared.labels[prepared.rows("validation")]
    temperature = fitted_temperature(probabilities, labels)
    error = goal(prepared.task).metric("expected_calibration_error")
    plain, scaled = (error.value(each, labels) for each in (probabilities, tempered(probabilities, temperature)))
    assert plain is not None and scaled is not None, "a validation split has rows"
    return Calibration(temperature, plain, scaled)
