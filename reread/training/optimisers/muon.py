"""Muon: momentum whose update of each matrix is made orthogonal; AdamW updates vectors and word vectors.

Sources: Jordan et al., Muon: An optimizer for hidden layers in neural networks, 2024, and Liu et al., Muon is Scalable
for LLM Training, arXiv 2502.16982, 2025, section 2.2: at a scale of 0.2 sqrt(max(rows, columns)), an update is as large
as AdamW's, whose learning rate and weight decay then serve both.

torch.optim.Muon takes matrices alone: here a convolution's kernel is a matrix as well, of output channels by the rest.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from cuda_ext.graphs import Graphs
from reread.storage.settings import Range
from reread.training.optimisers import decaying

# The quintic's coefficients, after which five iterations take singular values between 0.002 and 1 near to 1.
A, B, C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
SMALLEST_NORM = 1e-7
MATCHES_ADAMW = 0.2


@dataclass(frozen=True)
class Settings:
    """The settings of this optimiser.

    momentum: decay of the mean gradient of matrices; weight_decay: as a share of the learning rate, on matrices alone;
    beta1, beta2: AdamW's, for all that is no matrix.
    """

    momentum: Annotated[float, Range(0, 0.9999)] = 0.95
    weight_decay: Annotated[float, Range(0, 10)] = 0.1
    beta1: Annotated[float, Range(0, 0.99999)] = 0.9
    beta2: Annotated[float, Range(0, 0.999999)] = 0.999


class Muon(torch.optim.AdamW):
    """Muon for groups with ``orthogonal``, AdamW for the others."""

    _graphs: Graphs | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the parameters that have a gradient; nothing is read from the device."""
        groups = self.param_groups
        self.param_groups = [group for group in groups if not group["orthogonal"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["orthogonal"]:
                self._step_matrices(group)
        return loss

    def __setstate__(self, state: dict[str, Any]) -> None:
        # AdamW's own method reads AdamW's step from every parameter's state.
        torch.optim.Optimizer.__setstate__(self, state)

    def _step_matrices(self, group: dict[str, Any]) -> None:
        parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
        if not parameters:
            return
        updates = []
        for parameter in parameters:
            state = self.state[parameter]
            if "mean" not in state:
                state["mean"] = torch.zeros_like(parameter)
            mean = state["mean"].lerp_(parameter.grad, 1 - group["momentum"])
            updates.append(parameter.grad.lerp(mean, group["momentum"]))
        directions = self._directions(parameters[0].device)(*updates)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, directions, alpha=-group["lr"])

    def _directions(self, device: torch.device) -> Callable[..., list[Tensor]]:
        """Return ``directions``, on a GPU by a CUDA graph: its products are small and many."""
        if device.type != "cuda":
            return directions
        if self._graphs is None:
            self._graphs = Graphs(directions, "Muon's products", device)
        return self._graphs


def directions(*updates: Tensor) -> list[Tensor]:
    """updates float [R, ...] -> of the same shapes: as matrices made orthogonal, and as large as AdamW's.

    Those of one shape are multiplied together: a small product takes as long as several.
    """
    by_shape: dict[torch.Size, list[int]] = defaultdict(list)
    for place, update in enumerate(updates):
        by_shape[update.shape].append(place)
    changed = [*updates]
    for shape, places in by_shape.items():
        matrices = [updates[place].flatten(1) for place in places]
        scale = MATCHES_ADAMW * math.sqrt(max(matrices[0].shape))
        scaled = scale * orthogonal(torch.stack(matrices) if len(matrices) > 1 else matrices[0])
        for place, direction in zip(places, scaled.view(-1, *shape), strict=True):
            changed[place] = direction
    return changed


def orthogonal(matrices: Tensor) -> Tensor:
    """matrices float [R, C], or N of them [N, R, C] -> nearly the nearest ones whose singular values are all 1.

    By Newton-Schulz iterations in bfloat16; see the source for why its singular values may lie between 0.7 and 1.2.
    """
    multiply_add = torch.addmm if matrices.ndim == 2 else torch.baddbmm
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = (matrices.mT if tall else matrices).bfloat16()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=SMALLEST_NORM)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = multiply_add(x, multiply_add(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(matrices.dtype).contiguous()


def build(groups: list[dict[str, Any]], learning_rate: float, settings: Settings) -> torch.optim.Optimizer:
    """Return Muon over ``groups``: matrices that decay and are not looked up are made orthogonal."""
    chosen = [{"orthogonal": group["weight_decay"] and not group["lookup"]} for group in groups]
    decayed = decaying(groups, settings.weight_decay)
    muon = Muon(
        [group | choice for group, choice in zip(decayed, chosen, strict=True)],
        lr=learning_rate,
        betas=(settings.beta1, settings.beta2),
        foreach=True,
    )
    for group in muon.param_groups:
        group["momentum"] = settings.momentum
    return muon
