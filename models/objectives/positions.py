"""A symbol at each of several positions: cross entropy and softmax per position.

Scores float [n, K] are those of the symbols of the first position, then those of the next; targets are uint8 [n, P].

Shape legend: n rows, P positions, A symbols of the alphabet, K = P A outputs.
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
    """positions: P, by which the number of outputs is divided."""

    def __init__(self, positions: int) -> None:
        self.positions = positions

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.held_out_loss(scores(outputs), target)

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(self._apart(scores).flatten(0, 1), target.long().flatten())

    def probabilities(self, scores: Tensor) -> Tensor:
        return self._apart(scores).softmax(dim=2).flatten(1)

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return whether the highest score of each position is that of its symbol, bool [n, P]."""
        return self._apart(scores).argmax(dim=2) == target

    def _apart(self, scores: Tensor) -> Tensor:
        return scores.unflatten(1, (self.positions, -1))


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray | None) -> Positions:
    """Build the objective; InputError where the data asks for no symbols by position."""
    if "positions" not in description:
        raise InputError(
            f"objective 'positions' does not fit {description['name']}: it asks for no symbols by position"
        )
    return Positions(description["positions"])
