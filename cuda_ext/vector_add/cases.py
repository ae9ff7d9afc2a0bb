"""Vector addition's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cuda_ext.case import Case, Run, begin, compiled
from cuda_ext.vector_add import DTYPES, vector_add

# One launch's worth, and far more than the caches hold.
SIZES = (2**20, 2**27)


def bench_cases() -> Iterator[Case]:
    for dtype in DTYPES[1:]:
        for size in SIZES:
            yield _case(f"2^{size.bit_length() - 1}", size, dtype, offset=0)
    yield _case("2^27 - 1, misaligned", 2**27 - 1, torch.float32, offset=1)


def _case(shape: str, size: int, dtype: torch.dtype, offset: int) -> Case:
    def inputs() -> tuple[Tensor, Tensor]:
        x, y = (torch.randn(size + offset, device="cuda", dtype=dtype)[offset:] for _ in range(2))
        return x, y

    def add(x: Tensor, y: Tensor) -> Tensor:
        return x + y

    peers: dict[str, Run] = {"torch.add": torch.add, **compiled(add)}
    return Case("vector_add", shape, dtype, inputs, vector_add, peers, torch.add, 3 * size * dtype.itemsize)


def exercise() -> None:
    """Run the kernels at sizes and alignments that reach every branch, and compare with the reference."""
    for dtype in DTYPES[1:]:
        begin("vector_add", dtype)
        for size in (0, 1, 7, 8, 9, 1023, 4099, 300_001):
            for offset in (0, 1):
                x, y = (torch.randn(size + offset, device="cuda").to(dtype)[offset:] for _ in range(2))
                if not torch.equal(vector_add(x, y), torch.add(x, y)):
                    raise AssertionError(f"vector_add differs from torch.add at {size} of {dtype}, offset {offset}")
