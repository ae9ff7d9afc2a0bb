"""Activations by name: relu, swish (beta fixed at 1) and swish-beta (beta trained, one a layer, from 1).

Source: Ramachandran, Zoph and Le 2017, arXiv 1710.05941.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from cuda_ext.swish import swish

Name = Literal["relu", "swish", "swish-beta"]


class Swish(nn.Module):
    """x sigmoid(beta x)."""

    uses_kernels = True

    def __init__(self, trained: bool) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(())) if trained else None

    def forward(self, x: Tensor) -> Tensor:
        return swish(x, self.beta)


def activation(name: Name) -> nn.Module:
    """A new activation module: each layer takes its own, so that each has its own beta."""
    return {"relu": nn.ReLU, "swish": lambda: Swish(trained=False), "swish-beta": lambda: Swish(trained=True)}[name]()
