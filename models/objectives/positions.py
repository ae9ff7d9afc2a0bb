"""Several positions with one class each: cross entropy and softmax per position.

The data's labels have several classes, in groups of the same size, one group per position, and each row has one class
of each group.

Shape legend: n rows, P positions, A classes of a position, K = P A classes.
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


class Positions:
    """positions: P, by which the number of classes is divided."""

    def __init__(self, positions: int) -> None:
        self.positions = positions

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.held_out_loss(scores(outputs), target)

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        wanted = self._apart(target).argmax(dim=2)
        return functional.cross_entropy(self._apart(scores).flatten(0, 1), wanted.flatten())

    def probabilities(self, scores: Tensor) -> Tensor:
        return self._apart(scores).softmax(dim=2).flatten(1)

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return whether the highest score of each position is that of its class, bool [n, P]."""
        return self._apart(scores).argmax(dim=2) == self._apart(target).argmax(dim=2)

    def _apart(self, values: Tensor) -> Tensor:
        return values.unflatten(1, (self.positions, -1))


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray | None) -> Positions:
    """Build the objective; InputError where the data has no positions."""
    if "positions" not in description:
        raise InputError(f"objective 'positions' does not fit {description['name']}: its labels have no positions")
    return Positions(description["positions"])
