"""AdamW. Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from cuda_ext.adamw import adamw
from reread.storage.settings import Range
from reread.training.optimisers import decaying


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


class AdamW(torch.optim.AdamW):
    """PyTorch's AdamW, with its state; on a GPU one kernel updates the parameters of all groups (cuda_ext/adamw)."""

    clips = True

    @torch.no_grad()
    def step(  # type: ignore[override]
        self, closure: Callable[[], float] | None = None, norm: Tensor | None = None, largest_norm: float = 0.0
    ) -> float | None:
        """Update the parameters that have a gradient; nothing is read from the device.

        norm: of all gradients, float32 [], on a GPU alone: they then count as if clipped to ``largest_norm``.
        """
        if not self.param_groups[0]["params"][0].is_cuda:
            return super().step(closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        parameters: list[Tensor] = []
        gradients: list[Tensor] = []
        means: list[Tensor] = []
        squares: list[Tensor] = []
        steps: list[Tensor] = []
        rates: list[float] = []
        weight_decays: list[float] = []
        for group in self.param_groups:
            self._init_group(group, parameters, gradients, means, squares, [], steps)  # type: ignore[no-untyped-call]
            rates += [group["lr"]] * (len(parameters) - len(rates))
            weight_decays += [group["weight_decay"]] * (len(parameters) - len(weight_decays))
        # A scaler sets these while it calls this.
        scale, overflow = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        betas, epsilon = self.param_groups[0]["betas"], self.param_groups[0]["eps"]
        adamw(
            parameters, gradients, means, squares, steps, rates, weight_decays,
            betas, epsilon, norm, largest_norm, scale, overflow,
        )  # fmt: skip
        return loss


def build(groups: list[dict[str, Any]], learning_rate: float, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW over ``groups``."""
    return AdamW(
        decaying(groups, settings.weight_decay),
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        fused=True,
    )
