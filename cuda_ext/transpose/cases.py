"""The transpose's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cuda_ext.case import Case, Run, begin, compiled
from cuda_ext.transpose import DTYPES, KERNELS, transpose

# The tutorial's matrix, a large one, and one whose last tiles stick out on both sides.
SHAPES = ((1024, 1024), (8192, 8192), (8191, 8193))


def bench_cases() -> Iterator[Case]:
    for shape in SHAPES:
        yield _case(shape, torch.float32, "padded")
        # The lower rungs of the ladder, each beside the ones under it.
        yield _case(shape, torch.float32, "tiled")
        yield _case(shape, torch.float32, "naive")
    for dtype in DTYPES[2:]:
        yield _case(SHAPES[1], dtype, "padded")


def _case(shape: tuple[int, int], dtype: torch.dtype, kernel: str) -> Case:
    def inputs() -> tuple[Tensor]:
        return (torch.randn(shape, device="cuda", dtype=dtype),)

    below = KERNELS[: KERNELS.index(kernel)]
    peers: dict[str, Run] = {"x.t().contiguous()": _plain}
    if kernel == "padded":
        peers |= compiled(_plain)
    peers |= {name: partial(transpose, kernel=name) for name in below}
    rows, columns = shape
    name = f"{rows} x {columns}, {kernel}"
    moved = 2 * rows * columns * dtype.itemsize
    return Case("transpose", name, dtype, inputs, partial(transpose, kernel=kernel), peers, _plain, moved)


def _plain(x: Tensor) -> Tensor:
    return x.t().contiguous()


def exercise() -> None:
    """Run the kernels at sizes and alignments that reach every branch, and compare with PyTorch."""
    for dtype in DTYPES[1:]:
        begin("transpose", dtype)
        for rows, columns in ((0, 5), (1, 1), (1, 70), (70, 1), (32, 32), (31, 33), (64, 96), (103, 45)):
            for offset in (0, 1):
                x = torch.randn(rows * columns + offset, device="cuda").to(dtype)[offset:].view(rows, columns)
                for kernel in KERNELS:
                    if not torch.equal(transpose(x, kernel), _plain(x)):
                        where = f"{rows} x {columns} of {dtype}, offset {offset}"
                        raise AssertionError(f"transpose by {kernel} is wrong at {where}")
