"""The first derivative of a periodic grid by central differences, by two kernels that a caller can choose between.

The kernels are those of a tutorial (M. Harris, "Finite Difference Methods in CUDA C/C++", parts 1 and 2, NVIDIA
Technical Blog, 2013): a tile with its halo in shared memory, and for comparison loads from global memory alone. They
are in finite_differences.cu and bound by memory, which reads and writes each number once.
"""

import math
from typing import Any

import torch
from torch import Tensor

from cuda_ext.library import kernel as compiled
from cuda_ext.operation import FLOATS, define

# In the order of the grid's last dimensions, and of the compiled operation's numbers.
AXES = ("z", "y", "x")
KERNELS = ("direct", "tiled")
# Of the numbers 1 to 4 points away, in order 8: Fornberg, "Generation of Finite Difference Formulas on Arbitrarily
# Spaced Grids", 1988, table 1.
COEFFICIENTS = (4 / 5, -1 / 5, 4 / 105, -1 / 280)
# The compiled operation indexes a grid with 32 bits.
MOST_POINTS = 2**30


def finite_differences(f: Tensor, axis: str = "x", spacing: float = 1.0, kernel: str = "tiled") -> Tensor:
    """Return the derivative of a function on a grid along an axis: of the grid's shape and dtype, contiguous.

    Along the axis, ``result[i]`` is the sum over k from 1 to 4 of ``COEFFICIENTS[k - 1] * (f[i + k] - f[i - k])``,
    divided by the spacing: central differences of order 8. The grid is periodic: behind its last point comes its first.

    - ``f``: [..., Z, Y, X], float64 or float32, at least 4 points along the axis, at most 2^30 points in a grid, any
      strides (what is not contiguous is copied first).
    - ``axis``: ``x``, ``y`` or ``z``.
    - ``spacing``: the distance of two neighbours along the axis; a negative one turns the axis round.
    - ``kernel``: which one runs on a GPU: ``direct`` or ``tiled``, with the same bits; in float64 always the reference.

    Autocast changes nothing.
    Raises ValueError, naming what came, for anything else.

    >>> line = torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.0, -1.0])
    >>> finite_differences(line.expand(1, 1, 8))
    tensor([[[ 1.5238,  0.0000, -1.5238,  0.0000,  1.5238,  0.0000, -1.5238,
               0.0000]]])
    """
    return torch.ops.reread_kernels.finite_differences(f, axis, spacing, kernel)


def reference(f: Tensor, axis: str, spacing: float) -> Tensor:
    """Equals the sum of the definition, with ``f[i + k]`` as ``torch.roll(f, -k)``."""
    dim = AXES.index(axis) - 3
    result = torch.zeros_like(f, memory_format=torch.contiguous_format)
    for k, coefficient in enumerate(COEFFICIENTS, start=1):
        result = result + coefficient / spacing * (f.roll(-k, dim) - f.roll(k, dim))
    return result


def check(f: Tensor, axis: str, spacing: float, kernel: str) -> None:
    """Refuse what the kernels do not take."""
    if kernel not in KERNELS:
        raise ValueError(f"finite_differences' kernel is {', '.join(KERNELS)}, got {kernel!r}")
    if axis not in AXES:
        raise ValueError(f"finite_differences' axis is {', '.join(AXES)}, got {axis!r}")
    if not math.isfinite(spacing) or spacing == 0:
        raise ValueError(f"finite_differences takes a spacing that is finite and not 0, got {spacing}")
    if f.dtype not in FLOATS:
        raise ValueError(f"finite_differences takes a grid of float64 or float32, got {f.dtype}")
    if f.layout != torch.strided:
        raise ValueError(f"finite_differences takes a strided tensor, got layout {f.layout}")
    shape = tuple(f.shape)
    if f.ndim < 3:
        raise ValueError(f"finite_differences takes a grid as [..., Z, Y, X], got {shape}")
    if shape[AXES.index(axis) - 3] < len(COEFFICIENTS):
        raise ValueError(f"finite_differences takes at least 4 points along {axis}, got {shape}")
    if math.prod(shape[-3:]) > MOST_POINTS:
        raise ValueError(f"finite_differences takes at most 2^30 points in a grid, got {shape}")


def _run(f: Tensor, axis: str, spacing: float, kernel: str) -> Tensor:
    check(f, axis, spacing, kernel)
    run = compiled("finite_differences", f)
    if run is None:
        return reference(f, axis, spacing)
    return run(f, AXES.index(axis), spacing, KERNELS.index(kernel))


def _shape(f: Tensor, axis: str, spacing: float, kernel: str) -> Tensor:
    check(f, axis, spacing, kernel)
    return torch.empty_like(f, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.axis, ctx.spacing, ctx.kernel = inputs


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """A central difference on a periodic grid is antisymmetric: its transpose is that of the axis turned round."""
    return torch.ops.reread_kernels.finite_differences(gradient, ctx.axis, -ctx.spacing, ctx.kernel), None, None, None


define(
    "finite_differences(Tensor f, str axis, float spacing, str kernel) -> Tensor",
    _run,
    _shape,
    backward=_backward,
    setup_context=_save,
)
