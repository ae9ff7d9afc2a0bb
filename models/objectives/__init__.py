"""The objectives by name. An objective is one file, models/objectives/NAME.py, with

    Settings   a frozen dataclass of its settings
    build      build(settings, description, labels) -> Objective; description: the data set's prepared.json; labels:
               those of the training split while a network is trained, else None

A network's outputs are scores float [n, K], or a tuple whose first entry they are: what else is in it only the loss
reads. ``target`` is int64 [n] where a row has one label, float32 [n, K] of 0 and 1 where it has several, float32
[n, 1] where the data asks for a number (K is 1 then), and uint8 [n, P] where it asks for a symbol at each of P
positions.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from reread.storage.arrays import Float32Array
from reread.storage.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    Outputs = Tensor | tuple[Tensor, ...]

REGISTRY = Registry("models.objectives", "objective")
DEFAULT = {"name": "classification"}


class Objective(Protocol):
    """Loss, probabilities and right answers of a network's outputs.

    An objective whose ``loss`` is not its ``held_out_loss``, such as one that smooths or weighs labels, also has
    ``comparable_loss(scores, target)``: that loss of rows that were not trained on, float32 []. A learning curve shows
    it beside the loss of training.
    """

    def loss(
        self, network: "nn.Module", outputs: "Outputs", target: "Tensor", inputs: "tuple[Tensor, ...]"
    ) -> "Tensor":
        """Return the mean loss of a batch in training, float32 []."""

    def held_out_loss(self, scores: "Tensor", target: "Tensor") -> "Tensor":
        """Return the mean loss of rows that were not trained on, float32 [], by which training stops."""

    def probabilities(self, scores: "Tensor") -> "Tensor":
        """Return the probability of each class, or the predicted number, as ``scores`` are [n, K]."""

    def correct(self, scores: "Tensor", target: "Tensor") -> "Tensor":
        """Return which rows (bool [n]) or, with several labels, which entries (bool [n, K]) are right, and of symbols
        which positions (bool [n, P]). Of a number, how right each row is (float [n, 1], at most 1). Its mean is what
        training maximises."""


def make_objective(
    tagged: Mapping[str, Any], description: Mapping[str, Any], labels: np.ndarray | None = None
) -> Objective:
    """Build the objective that ``tagged`` names for a data set; ``labels`` are those of its training split."""
    module, settings = REGISTRY.resolve(tagged)
    return module.build(settings, description, labels)


def scores(outputs: "Outputs") -> "Tensor":
    """Return the scores [n, K] among a network's outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def to_probabilities(objective: Objective, scores: Float32Array) -> Float32Array:
    """Return the probabilities of float32 scores [n, K], computed in float64 and rounded to float32."""
    import torch

    return objective.probabilities(torch.from_numpy(scores).double()).float().numpy()
