"""AdamW. Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019."""

from dataclasses import dataclass
from typing import Annotated, Any

import torch

from storage.settings import Range
from training.optimisers import decaying


@dataclass(frozen=True)
class Settings:
    """The settings of this optimiser.

    weight_decay: as a share of the learning rate, on matrices alone; beta1, beta2: decay of the mean gradient and of
    its mean square; epsilon: added to the root of the latter.
    """

    weight_decay: Annotated[float, Range(0, 10)] = 0.1
    beta1: Annotated[float, Range(0, 0.99999)] = 0.9
    beta2: Annotated[float, Range(0, 0.999999)] = 0.999
    epsilon: Annotated[float, Range(0, 1)] = 1e-8


def build(groups: list[dict[str, Any]], learning_rate: float, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW over ``groups``."""
    return torch.optim.AdamW(
        decaying(groups, settings.weight_decay),
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
