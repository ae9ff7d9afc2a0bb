"""Cross entropy of one label, binary cross entropy of several; softmax and sigmoid.

Sources: Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, section 7 (label smoothing); King and Zeng,
Logistic Regression in Rare Events Data, 2001 (balanced weights, n / (2 n_class), as scikit-learn has them).

Shape legend: n rows, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.cross_entropy import cross_entropy
from models.objectives import scores
from reread.storage.errors import InputError
from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this objective.

    label_smoothing: the share of a label that is spread over all classes.

    class_weights: of data with several labels, ``balanced`` gives the rows that have a class and those that lack it the
    same weight together, per class, by their numbers in the training split.
    """

    label_smoothing: Annotated[float, Range(0, 0.99)] = 0.1
    class_weights: Literal["none", "balanced"] = "none"


class Classification:
    """weights: float32 [2, K], of entries of 0 and of 1, or None."""

    def __init__(self, label_smoothing: float, several: bool, weights: Tensor | None = None) -> None:
        self.label_smoothing = label_smoothing
        self.several = several
        self.weights = weights

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        logits = scores(outputs)
        if self.weights is not None:
            # The first step copies them, before a CUDA graph is captured.
            self.weights = self.weights.to(logits.device)
        return self._smoothed(logits, target, self.weights)

    def comparable_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        # A copy: the graph of training reads the weights where they are.
        return self._smoothed(scores, target, None if self.weights is None else self.weights.to(scores.device))

    def _smoothed(self, logits: Tensor, target: Tensor, weights: Tensor | None) -> Tensor:
        if not self.several and logits.is_cuda:
            return cross_entropy(logits, target, self.label_smoothing)
        if not self.several:
            return functional.cross_entropy(logits, target, label_smoothing=self.label_smoothing)
        smooth = target * (1 - self.label_smoothing) + self.label_smoothing / 2
        if weights is None:
            return functional.binary_cross_entropy_with_logits(logits, smooth)
        of_entries = torch.where(target.bool(), weights[1], weights[0])
        return functional.binary_cross_entropy_with_logits(logits, smooth, of_entries)

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        if self.several:
            return functional.binary_cross_entropy_with_logits(scores, target)
        return functional.cross_entropy(scores, target)

    def probabilities(self, scores: Tensor) -> Tensor:
        return scores.sigmoid() if self.several else scores.softmax(dim=1)

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        return (scores > 0) == target.bool() if self.several else scores.argmax(dim=1) == target


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray | None) -> Classification:
    """Build the objective; InputError for balanced class weights where rows have one label."""
    several = description["task"] == "multi-label"
    balanced = settings.class_weights == "balanced"
    if balanced and not several:
        raise InputError(
            f"class_weights is balanced, and rows of {description['name']} have one label each: set it to none"
        )
    weights = balanced_weights(labels) if balanced and labels is not None else None
    return Classification(settings.label_smoothing, several, weights)


def balanced_weights(labels: np.ndarray) -> Tensor:
    """labels 0 or 1 [n, K] -> weights of entries of 0 and of 1, float32 [2, K]; 1 where all entries are the same."""
    having = np.asarray(labels, dtype=np.int64).sum(axis=0)
    counts = np.stack((len(labels) - having, having))
    weights = np.where(counts.min(axis=0) > 0, len(labels) / (2 * np.maximum(counts, 1)), 1.0)
    return torch.from_numpy(weights.astype(np.float32))
