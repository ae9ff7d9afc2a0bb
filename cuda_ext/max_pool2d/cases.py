"""Maximum pooling's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

import itertools
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.case import Case, Run, backward_of, begin, compiled
from cuda_ext.max_pool2d import DTYPES, WINDOWS, max_pool2d, windows

# The three that fastnet pools on CIFAR-10 (models/fastnet.py), at the batch of its record.
SHAPES = ((2000, 64, 31, 31), (2000, 256, 15, 15), (2000, 256, 7, 7))
# Of windows of 3 x 3, in the stem of DenseNet-121 (models/densenet_imagenet.py).
STEM = (128, 64, 112, 112)


def bench_cases() -> Iterator[Case]:
    for shape in SHAPES:
        for backward in (False, True):
            yield _case(shape, torch.bfloat16, backward)
    for backward in (False, True):
        yield _case(SHAPES[0], torch.float32, backward)
    for backward in (False, True):
        yield _case(STEM, torch.bfloat16, backward, window=3)


def _case(shape: tuple[int, int, int, int], dtype: torch.dtype, backward: bool, window: int = 2) -> Case:
    count, channels, height, width = shape
    pooled = (count, channels, windows(height, window), windows(width, window))

    def inputs() -> tuple[Tensor, ...]:
        x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
        if not backward:
            return (x,)
        gradient = torch.randn(pooled, device="cuda", dtype=dtype)
        return x.requires_grad_(), gradient.contiguous(memory_format=torch.channels_last)

    def plain(x: Tensor) -> Tensor:
        return _plain(x, window)

    def own(x: Tensor) -> Tensor:
        return max_pool2d(x, window)

    way: Callable[[Run], Run] = backward_of if backward else lambda function: function
    peers: dict[str, Run] = {"F.max_pool2d": plain, **compiled(plain)}
    maxima = math.prod(pooled)
    # A byte per maximum says which of its window's numbers it is.
    moved = (math.prod(shape) + maxima) * dtype.itemsize + maxima
    name = "max_pool2d backward" if backward else "max_pool2d"
    described = " x ".join(map(str, shape)) + ("" if window == 2 else f", window {window}")
    peers = {name: way(peer) for name, peer in peers.items()}
    return Case(name, described, dtype, inputs, way(own), peers, way(plain), moved)


def _plain(x: Tensor, window: int) -> Tensor:
    return functional.max_pool2d(x, window, stride=2, padding=window - 2)


def exercise() -> None:
    """Run the kernels at sizes, channels and alignments that reach every branch, and compare with PyTorch."""
    shapes = ((0, 3, 4, 4), (2, 8, 5, 7), (3, 5, 4, 3), (1, 16, 2, 70), (2, 1, 1, 5), (1, 8, 18, 3), (1, 3, 17, 2))
    for dtype, window in itertools.product(DTYPES[1:], WINDOWS):
        begin("max_pool2d", dtype, window)
        for (count, channels, height, width), offset in itertools.product(shapes, (0, 1)):
            flat = torch.randn(count * channels * height * width + offset, device="cuda").to(dtype)[offset:]
            x = flat.view(count, height, width, channels).movedim(-1, 1).requires_grad_()
            y = max_pool2d(x, window)
            above = torch.randn_like(y)
            (gradient,) = torch.autograd.grad(y, x, above)
            # On the CPU: what the sanitizer watches is then little but the kernels.
            expected, expected_gradient = _expected(x, above, window)
            if not (torch.equal(y.cpu(), expected) and torch.equal(gradient.cpu(), expected_gradient)):
                raise AssertionError(
                    f"max_pool2d is wrong on {tuple(x.shape)} of {dtype}, window {window}, offset {offset}"
                )


def _expected(x: Tensor, above: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """The maxima and the gradient; half precision is added up in float32."""
    wide = x.detach().cpu().float().requires_grad_()
    if 0 in above.shape:
        return above.cpu(), torch.zeros_like(wide).to(x.dtype)
    y = _plain(wide, window)
    (gradient,) = torch.autograd.grad(y, wide, above.cpu().float())
    return y.detach().to(x.dtype), gradient.to(x.dtype)
