"""Transpose of a matrix, by a ladder of three kernels that a caller can choose between.

The ladder is that of a tutorial (M. Harris, "An Efficient Matrix Transpose in CUDA C/C++", NVIDIA Technical Blog,
2013): naive, a tile in shared memory, and a tile with one unused column, so that no two numbers of a column lie in one
bank of that memory. The kernels are in transpose.cu. They are bound by memory and read and write each number once.
"""

from typing import Any

import torch
from torch import Tensor

from cuda_ext.library import kernel as compiled
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# In the order of the compiled operation's numbers.
KERNELS = ("naive", "tiled", "padded")


def transpose(x: Tensor, kernel: str = "padded") -> Tensor:
    """Return the transpose of a matrix, contiguous, in its dtype, and never a view of it.

    - ``x``: [rows, columns], float64, float32, float16 or bfloat16, any strides (what is not contiguous is copied
      first).
    - ``kernel``: which one runs on a GPU: ``naive``, ``tiled`` or ``padded``, all with the same bits; in float64 always
      the reference.

    Raises ValueError, naming what came, for anything else.

    >>> transpose(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    tensor([[1., 4.],
            [2., 5.],
            [3., 6.]])
    """
    return torch.ops.reread_kernels.transpose(x, kernel)


def reference(x: Tensor) -> Tensor:
    """Equals ``x.t().contiguous()``, copied where that would be a view of ``x``."""
    return x.t().clone(memory_format=torch.contiguous_format)


def check(x: Tensor, kernel: str) -> None:
    """Refuse what the kernels do not take."""
    if kernel not in KERNELS:
        raise ValueError(f"transpose's kernel is {', '.join(KERNELS)}, got {kernel!r}")
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"transpose takes a matrix of {known}, got {x.dtype}")
    if x.layout != torch.strided:
        raise ValueError(f"transpose takes a strided tensor, got layout {x.layout}")
    if x.ndim != 2:
        raise ValueError(f"transpose takes a matrix as [rows, columns], got {tuple(x.shape)}")


def _run(x: Tensor, kernel: str) -> Tensor:
    check(x, kernel)
    run = compiled("transpose", x)
    return reference(x) if run is None else run(x, KERNELS.index(kernel))


def _shape(x: Tensor, kernel: str) -> Tensor:
    check(x, kernel)
    return x.new_empty(x.shape[1], x.shape[0])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.kernel = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return torch.ops.reread_kernels.transpose(gradient, ctx.kernel), None


define("transpose(Tensor x, str kernel) -> Tensor", _run, _shape, backward=_backward, setup_context=_save)
