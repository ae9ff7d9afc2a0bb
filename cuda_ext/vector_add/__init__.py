"""Vector addition, z = x + y: the worked example of how a kernel here is built, checked, tested and measured.

The kernel is in vector_add.cu; it is bound by memory and reads and writes each number once.
"""

from typing import Any

import torch
from torch import Tensor

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def vector_add(x: Tensor, y: Tensor) -> Tensor:
    """Return x + y, contiguous, in the dtype of the two.

    - ``x``, ``y``: one shape, one dtype (float64, float32, float16 or bfloat16) and one device; any strides (what is
      not contiguous is copied first).

    Under autocast the narrower of two dtypes is promoted to the wider.
    Raises ValueError, naming what came, for anything else.

    >>> vector_add(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0]))
    tensor([4., 6.])
    """
    return torch.ops.reread_kernels.vector_add(x, y)


def reference(x: Tensor, y: Tensor) -> Tensor:
    """Equals ``torch.add(x, y)`` of two tensors of one shape and dtype, made contiguous."""
    return torch.add(x, y).contiguous()


def check(x: Tensor, y: Tensor) -> None:
    """Refuse what the kernel does not take."""
    if x.device != y.device:
        raise ValueError(f"vector_add takes x and y on one device, got {x.device} and {y.device}")
    if x.dtype != y.dtype or x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"vector_add takes x and y of one dtype of {known}, got {x.dtype} and {y.dtype}")
    if x.shape != y.shape:
        raise ValueError(f"vector_add takes x and y of one shape, got {tuple(x.shape)} and {tuple(y.shape)}")
    if x.layout != torch.strided or y.layout != torch.strided:
        raise ValueError(f"vector_add takes strided tensors, got layouts {x.layout} and {y.layout}")


def _run(x: Tensor, y: Tensor) -> Tensor:
    check(x, y)
    return (kernel("vector_add", x) or reference)(x, y)


def _shape(x: Tensor, y: Tensor) -> Tensor:
    check(x, y)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The sum passes its gradient on to both."""
    return gradient, gradient


def _promote(device: str, x: Tensor, y: Tensor) -> Tensor:
    """Autocast: as PyTorch's own promoting operations do, in the wider of the two dtypes."""
    widest = torch.promote_types(x.dtype, y.dtype)
    return torch.ops.reread_kernels.vector_add(x.to(widest), y.to(widest))


define("vector_add(Tensor x, Tensor y) -> Tensor", _run, _shape, backward=_backward, autocast=_promote)
