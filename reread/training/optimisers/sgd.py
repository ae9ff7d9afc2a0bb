"""Stochastic gradient descent with momentum. Source: Sutskever et al., ICML 2013, section 2 (Nesterov's momentum)."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from reread.storage.settings import Range
from reread.training.optimisers import decaying


@dataclass(frozen=True)
class Settings:
    """The settings of this optimiser.

    momentum: decay of the velocity; nesterov: look ahead along the velocity, where there is momentum; weight_decay:
    added to the gradient of matrices, with ``decay_vectors`` to that of biases, norms and betas too.
    """

    momentum: Annotated[float, Range(0, 0.9999)] = 0.9
    nesterov: bool = True
    weight_decay: Annotated[float, Range(0, 10)] = 0.0005
    decay_vectors: bool = False


def build(groups: list[dict[str, Any]], learning_rate: float, settings: Settings) -> torch.optim.Optimizer:
    """Return SGD over ``groups``."""
    if settings.decay_vectors:
        groups = [group | {"weight_decay": True} for group in groups]
    return torch.optim.SGD(
        decaying(groups, settings.weight_decay),
        lr=learning_rate,
        momentum=settings.momentum,
        nesterov=settings.nesterov and settings.momentum > 0,
        fused=True,
    )
