"""What a kernel's folder tells the benchmark: one case is one operation on inputs of one shape and dtype."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One line of the benchmark's table.

    inputs(): fresh random inputs on the GPU, one set a call.
    function, peers: the operation and what a user would call instead, by name; each takes one set of inputs.
    exact: the same in float64, from inputs of float64; what the error is measured against.
    bytes: the fewest bytes that device memory must move, each input read once and each output written once.
    """

    kernel: str
    shape: str
    dtype: torch.dtype
    inputs: Callable[[], tuple[Tensor, ...]]
    function: Callable[..., Tensor]
    peers: dict[str, Callable[..., Tensor]]
    exact: Callable[..., Tensor]
    bytes: int
