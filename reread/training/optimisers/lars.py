"""LARS: each matrix learns at a rate in proportion to its norm over its gradient's.

Source: You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, arXiv 1708.03888, 2017, algorithm 1:

    ratio    = trust_coefficient ||w|| / (||g|| + weight_decay ||w||)
    velocity = momentum velocity + learning_rate ratio (g + weight_decay w)
    w        = w - velocity

Vectors (biases, norms) are excluded, as is usual: their ratio is 1, and they do not decay.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from reread.storage.settings import Range
from reread.training.optimisers import decaying


@dataclass(frozen=True)
class Settings:
    """The settings of this optimiser.

    momentum: decay of the velocity; weight_decay: added to the gradient of matrices; trust_coefficient: a matrix's step
    at learning rate 1, as a share of its norm.
    """

    momentum: Annotated[float, Range(0, 0.9999)] = 0.9
    weight_decay: Annotated[float, Range(0, 10)] = 0.0005
    trust_coefficient: Annotated[float, Range(0, 10, exclusive=True)] = 0.001


class LARS(torch.optim.Optimizer):
    """LARS over groups with ``adapt``: whether the trust ratio applies to their parameters."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters that have a gradient; nothing is read from the device."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            gradients = [parameter.grad for parameter in parameters]
            velocities = [self._velocity(parameter) for parameter in parameters]
            updates = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
            if group["adapt"]:
                torch._foreach_mul_(updates, trust_ratios(parameters, gradients, group))
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates, alpha=group["lr"])
            torch._foreach_sub_(parameters, velocities)
        return loss

    def _velocity(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if "velocity" not in state:
            state["velocity"] = torch.zeros_like(parameter)
        return state["velocity"]


def trust_ratios(parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
    """Return each parameter's trust ratio, float []; 1 where the parameter or its gradient is zero."""
    weights, slopes = (torch.stack(torch._foreach_norm(tensors)) for tensors in (parameters, gradients))
    ratios = group["trust_coefficient"] * weights / (slopes + group["weight_decay"] * weights)
    return list(torch.where((weights > 0) & (slopes > 0), ratios, 1.0).unbind())


def build(groups: list[dict[str, Any]], learning_rate: float, settings: Settings) -> torch.optim.Optimizer:
    """Return LARS over ``groups``."""
    adapted = [{"adapt": group["weight_decay"]} for group in groups]
    decayed = decaying(groups, settings.weight_decay)
    return LARS(
        [group | adapt for group, adapt in zip(decayed, adapted, strict=True)],
        {"lr": learning_rate, "momentum": settings.momentum, "trust_coefficient": settings.trust_coefficient},
    )
