"""Finite differences' cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_ext.bench import relative_error
from cuda_ext.case import Case, Run, begin, compiled
from cuda_ext.finite_differences import AXES, COEFFICIENTS, KERNELS, finite_differences, reference

# The tutorial's grid, and a large one.
SIDES = (64, 512)
# Rounding of the four weights, of their differences and of the sum, with some room.
LARGEST_ERROR = 5e-7


def bench_cases() -> Iterator[Case]:
    for side in SIDES:
        for axis in reversed(AXES):
            yield _case(side, axis, "tiled")
            yield _case(side, axis, "direct")


def _case(side: int, axis: str, kernel: str) -> Case:
    def inputs() -> tuple[Tensor]:
        return (torch.randn(side, side, side, device="cuda"),)

    def rolled(f: Tensor) -> Tensor:
        return reference(f, axis, 1.0)

    peers: dict[str, Run] = {"torch.roll": rolled}
    if kernel == "tiled":
        peers |= {"direct": partial(finite_differences, axis=axis, kernel="direct")}
        peers |= {"cuDNN": by_conv3d(axis), **compiled(rolled)}
    name = f"{side} x {side} x {side}, {axis}, {kernel}"
    function = partial(finite_differences, axis=axis, kernel=kernel)
    return Case("finite_differences", name, torch.float32, inputs, function, peers, rolled, 8 * side**3)


def by_conv3d(axis: str) -> Run:
    """Return the derivative with a spacing of 1 of a grid [Z, Y, X] as a convolution with circular padding."""
    half = [*reversed(COEFFICIENTS)]
    taps = torch.tensor([*(-weight for weight in half), 0.0, *COEFFICIENTS], dtype=torch.float64)
    place = AXES.index(axis)
    # F.pad begins with the last dimension.
    margins = [len(COEFFICIENTS) if dim == place else 0 for dim in (2, 1, 0) for _ in range(2)]
    weights: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def run(f: Tensor) -> Tensor:
        kind = (f.device, f.dtype)
        if kind not in weights:
            weights[kind] = taps.to(*kind).view([1, 1] + [-1 if dim == place else 1 for dim in range(3)])
        padded = F.pad(f[None, None], margins, mode="circular")
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            return F.conv3d(padded, weights[kind])[0, 0]

    return run


def exercise() -> None:
    """Run the kernels at sizes and alignments that reach every branch, and compare with the CPU's float64."""
    # A line shorter than the stencil; a tile and more, along and across; a tile that is full; two grids.
    for shape in ((4, 5, 7), (70, 9, 66), (64, 64, 64), (2, 12, 130, 33)):
        for offset in (0, 1):
            begin("finite_differences", shape, offset)
            size = torch.Size(shape)
            f = torch.randn(size.numel() + offset, device="cuda")[offset:].view(size)
            for axis in AXES:
                exact = reference(f.cpu().double(), axis, 0.5)
                for kernel in KERNELS:
                    derivative = finite_differences(f, axis, 0.5, kernel)
                    if relative_error(derivative.cpu(), exact) > LARGEST_ERROR:
                        raise AssertionError(f"finite_differences errs at {shape}, {axis}, {kernel}, offset {offset}")
