"""Mean squared error of a number, which is standardised by the mean and deviation of the training split.

Shape legend: n rows. Targets are float32 [n, 1] in their own unit, scores standardised.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from models.objectives import scores
from reread.storage.errors import InputError


@dataclass(frozen=True)
class Settings:
    """This objective has no settings."""


class SquaredError:
    """mean, deviation: of the targets of the training split."""

    def __init__(self, mean: float, deviation: float) -> None:
        self.mean = mean
        self.deviation = deviation

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.held_out_loss(scores(outputs), target)

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.mse_loss(scores, (target - self.mean) / self.deviation)

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the predictions in the unit of the targets."""
        return scores * self.deviation + self.mean

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return for each row 1 less its squared error in variances of the training split: the mean is about R2."""
        return 1 - (scores - (target - self.mean) / self.deviation).square()


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray[Any, Any] | None) -> SquaredError:
    """Build the objective; InputError where the data asks for no number."""
    if "target_mean" not in description:
        raise InputError(f"objective 'squared_error' does not fit {description['name']}: it asks for no number")
    return SquaredError(description["target_mean"], description["target_deviation"])
