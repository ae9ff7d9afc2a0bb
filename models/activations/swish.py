"""x sigmoid(x). Source: Ramachandran, Zoph and Le, Searching for Activation Functions, arXiv 1710.05941, 2017."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cuda_ext.swish import swish


@dataclass(frozen=True)
class Settings:
    """Swish has no settings; models/activations/swish_beta.py trains its beta."""


KERNEL = "swish"


class Swish(nn.Module):
    """x sigmoid(beta x); beta: None (which is 1) or trained from 1, a scalar or [C]."""

    uses_kernels = True
    kernel: str | None

    def __init__(self, beta: tuple[int, ...] | None = None) -> None:
        """beta: the shape of a trained one."""
        super().__init__()
        self.beta = None if beta is None else nn.Parameter(torch.ones(beta))

    def forward(self, x: Tensor) -> Tensor:
        return swish(x, self.beta)


def build(channels: int, settings: Settings) -> Swish:
    return Swish()
