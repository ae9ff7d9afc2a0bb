"""The norm of a network's gradients together, as ``torch.nn.utils.get_total_norm``.

PyTorch computes a norm of each tensor, by few large blocks, and the norm of those. Here a launch adds the squares of
all tensors, and a second one of one block takes the root.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_ext.library import kernel
from cuda_ext.operation import FLOATS, define, refuse_mixed

DTYPES = FLOATS


def gradient_norm(tensors: Sequence[Tensor]) -> Tensor:
    """Return the root of the sum of all squares, []: of float32 or float64, as the tensors, without a gradient.

    - ``tensors``: at least one, of any shapes without gaps in memory, of one dtype and on one device.

    Squares are added in float32 within a tile of 8192 numbers, and tiles in float64.
    Raises ValueError, naming what came, for anything else.

    >>> gradient_norm([torch.tensor([3.0]), torch.tensor([[0.0], [-4.0]])])
    tensor(5.)
    """
    if not tensors:
        raise ValueError("gradient_norm takes at least one tensor, got none")
    return torch.ops.reread_kernels.gradient_norm([tensor.detach() for tensor in tensors])


def reference(tensors: list[Tensor]) -> Tensor:
    """Equals ``torch.nn.utils.get_total_norm(tensors)``."""
    return torch.nn.utils.get_total_norm(tensors)


def check(tensors: list[Tensor]) -> None:
    """Refuse what the kernel does not take."""
    refuse_mixed("gradient_norm", "tensors", tensors)


def _run(tensors: list[Tensor]) -> Tensor:
    check(tensors)
    return (kernel("gradient_norm", tensors[0]) or reference)(tensors)


def _shape(tensors: list[Tensor]) -> Tensor:
    check(tensors)
    return tensors[0].new_empty(())


define("gradient_norm(Tensor[] tensors) -> Tensor", _run, _shape)
