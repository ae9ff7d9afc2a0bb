"""Maximum pooling's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.case import Case, Run, backward_of, begin, compiled
from cuda_ext.max_pool2d import DTYPES, max_pool2d

# The three that fastnet pools on CIFAR-10 (models/fastnet.py), at the batch of its record.
SHAPES = ((2000, 64, 31, 31), (2000, 256, 15, 15), (2000, 256, 7, 7))


def bench_cases() -> Iterator[Case]:
    for shape in SHAPES:
        for backward in (False, True):
            yield _case(shape, torch.bfloat16, backward)
    for backward in (False, True):
        yield _case(SHAPES[0], torch.float32, backward)


def _case(shape: tuple[int, int, int, int], dtype: torch.dtype, backward: bool) -> Case:
    count, channels, height, width = shape
    maxima = count * channels * (height // 2) * (width // 2)

    def inputs() -> tuple[Tensor, ...]:
        x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
        if not backward:
            return (x,)
        pooled = torch.randn((count, channels, height // 2, width // 2), device="cuda", dtype=dtype)
        return x.requires_grad_(), pooled.contiguous(memory_format=torch.channels_last)

    way: Callable[[Run], Run] = backward_of if backward else lambda function: function
    peers: dict[str, Run] = {"F.max_pool2d": _plain, **compiled(_plain)}
    # A byte per maximum says which of four it is.
    moved = (count * channels * height * width + maxima) * dtype.itemsize + maxima
    name = "max_pool2d backward" if backward else "max_pool2d"
    described = " x ".join(map(str, shape))
    peers = {name: way(peer) for name, peer in peers.items()}
    return Case(name, described, dtype, inputs, way(max_pool2d), peers, way(_plain), moved)


def _plain(x: Tensor) -> Tensor:
    return functional.max_pool2d(x, 2)


def exercise() -> None:
    """Run the kernels at sizes, channels and alignments that reach every branch, and compare with PyTorch."""
    for dtype in DTYPES[1:]:
        begin("max_pool2d", dtype)
        for count, channels, height, width in ((0, 3, 4, 4), (2, 8, 5, 7), (3, 5, 4, 3), (1, 16, 2, 70), (2, 1, 1, 5)):
            for offset in (0, 1):
                flat = torch.randn(count * channels * height * width + offset, device="cuda").to(dtype)[offset:]
                x = flat.view(count, height, width, channels).movedim(-1, 1).requires_grad_()
                y = max_pool2d(x)
                above = torch.randn_like(y)
                (gradient,) = torch.autograd.grad(y, x, above)
                # On the CPU: what the sanitizer watches is then little but the kernels.
                expected, expected_gradient = _expected(x, above)
                if not (torch.equal(y.cpu(), expected) and torch.equal(gradient.cpu(), expected_gradient)):
                    raise AssertionError(f"max_pool2d is wrong on {tuple(x.shape)} of {dtype}, offset {offset}")


def _expected(x: Tensor, above: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().cpu().requires_grad_()
    if 0 in above.shape:
        return above.cpu(), torch.zeros_like(x)
    y = _plain(x)
    return y.detach(), torch.autograd.grad(y, x, above.cpu())[0]
