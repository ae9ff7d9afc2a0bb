"""Weighted binary cross entropy of several labels, as CheXNet has it.

Source: Rajpurkar et al., CheXNet, arXiv 1711.05225, 2017, section 2.1, and per class Wang et al., CVPR 2017:
an entry of class k weighs w+ = |N| / (|P| + |N|) where the label is there and w- = |P| / (|P| + |N|) where it is not,
with |P| and |N| rows of the training split that have it and lack it. ``classification`` with ``balanced`` weights has
the same ratio w+ / w-, but gives each class the same total weight; here a class of share p weighs 2 p (1 - p).

Probabilities are sigmoids of the scores. They are calibrated for a split in which each class has
as many rows as it lacks: they rank rows well, but are far above the share of a rare class.

Shape legend: n rows, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from models.objectives import scores
from reread.storage.errors import InputError


@dataclass(frozen=True)
class Settings:
    """This objective has no settings."""


class Chexnet:
    """weights: float32 [2, K], of entries of 0 and of 1; None where the labels of the training split are not known."""

    def __init__(self, weights: Tensor | None) -> None:
        self.weights = weights
        # Training reads them on a GPU and validation on the CPU: a captured CUDA graph needs its own copy to stay.
        self._copies: dict[torch.device, Tensor] = {}

    def weights_on(self, device: torch.device) -> Tensor:
        """Return the weights on ``device``: always the same tensor, made by the first step, before any capture."""
        if device not in self._copies:
            self._copies[device] = self.weights.to(device)  # type: ignore[union-attr]
        return self._copies[device]

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        return self.held_out_loss(scores(outputs), target)

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        """Weighted as in training: without weights, the loss would rise while the ranking improves."""
        if self.weights is None:
            return functional.binary_cross_entropy_with_logits(scores, target)
        of_absent, of_present = self.weights_on(scores.device)
        weights = torch.where(target.bool(), of_present, of_absent)
        return functional.binary_cross_entropy_with_logits(scores, target, weights)

    def comparable_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        return self.held_out_loss(scores, target)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.sigmoid()

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        return (scores > 0) == target.bool()


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray | None) -> Chexnet:
    """Build the objective; InputError where rows have one label."""
    if description["task"] != "multi-label":
        raise InputError(f"objective 'chexnet' does not fit {description['name']}: its rows have one label each")
    return Chexnet(None if labels is None else shares(labels))


def shares(labels: np.ndarray) -> Tensor:
    """labels 0 or 1 [n, K] -> weights of entries of 0, |P| / n, and of 1, |N| / n, float32 [2, K]."""
    having = np.asarray(labels, dtype=np.int64).sum(axis=0)
    return torch.from_numpy((np.stack((having, len(labels) - having)) / max(len(labels), 1)).astype(np.float32))
