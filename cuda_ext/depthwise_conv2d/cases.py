"""Depthwise convolution's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.case import CUDNN_ALONE, Case, backward_of, begin, compiled
from cuda_ext.depthwise_conv2d import PADDINGS, depthwise_conv2d, reference, reference_backward

Result = TypeVar("Result")
# Batch, channels, height and width; filter; dtypes. The first is a middle stage of an image classifier. Then those that
# are channels_last.
TIMED = [
    ((64, 128, 56, 56), 3, (torch.float32, torch.float16)),
    ((64, 128, 56, 56), 5, (torch.float32, torch.float16)),
    ((64, 128, 56, 56), 7, (torch.float32, torch.bfloat16)),
    ((8, 32, 512, 512), 5, (torch.float32,)),
    ((16, 128, 56, 56), 15, (torch.float32,)),
]
TIMED_CHANNELS_LAST = [
    ((64, 128, 56, 56), 3, (torch.float32, torch.float16, torch.bfloat16)),
    ((64, 128, 56, 56), 5, (torch.float32, torch.bfloat16)),
    ((64, 128, 56, 56), 7, (torch.float32, torch.bfloat16)),
    ((8, 32, 512, 512), 3, (torch.float32, torch.bfloat16)),
]


def bench_cases() -> Iterator[Case]:
    for layout, timed in ((torch.contiguous_format, TIMED), (torch.channels_last, TIMED_CHANNELS_LAST)):
        for shape, k, dtypes in timed:
            for dtype in dtypes:
                yield _case(shape, k, dtype, layout, backward=False)
                yield _case(shape, k, dtype, layout, backward=True)


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    return functional.conv2d(x, weight, padding=weight.shape[-1] // 2, groups=weight.shape[0])


def _under(run: Callable[..., Result], **flags: bool) -> Callable[..., Result]:
    """``run`` with cuDNN's settings, enabled or not; a backward pass reads them when it runs."""

    def set_and_run(*inputs: Tensor) -> Result:
        with torch.backends.cudnn.flags(allow_tf32=False, **flags):
            return run(*inputs)

    return set_and_run


def _in_channels_last(run: Callable[..., Result]) -> Callable[..., Result]:
    """``run`` on inputs that are channels_last already, as in a whole network, so that the copies are not timed."""
    copies: dict[int, tuple[Tensor, ...]] = {}

    def copy_and_run(*inputs: Tensor) -> Result:
        if id(inputs[0]) not in copies:
            copies[id(inputs[0])] = tuple(
                tensor.detach().contiguous(memory_format=torch.channels_last).requires_grad_(tensor.requires_grad)
                for tensor in inputs
            )
        return run(*copies[id(inputs[0])])

    return copy_and_run


def _case(
    shape: tuple[int, int, int, int], k: int, dtype: torch.dtype, layout: torch.memory_format, backward: bool
) -> Case:
    def image() -> Tensor:
        return torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=layout)

    def inputs() -> tuple[Tensor, ...]:
        x = image().requires_grad_(backward)
        weight = torch.randn(shape[1], 1, k, k, device="cuda", dtype=dtype, requires_grad=backward)
        return (x, weight, image()) if backward else (x, weight)

    def exact_backward(x: Tensor, weight: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
        return reference_backward(gradient, x.detach(), weight.detach(), "zeros", True, True)

    def peer(function: Callable[..., Tensor] = convolution) -> Callable[..., Tensor | tuple[Tensor, ...]]:
        return backward_of(function) if backward else function

    # Benchmark mode times every algorithm of cuDNN on the first call of a shape.
    peers = {"cuDNN channels_last": _in_channels_last(_under(peer(), enabled=True, benchmark=True))}
    for name, function in compiled(convolution, CUDNN_ALONE).items():
        peers[f"{name}, channels_last"] = _in_channels_last(_under(peer(function), enabled=True, benchmark=True))
    if layout == torch.contiguous_format:
        peers["cuDNN"] = _under(peer(), enabled=True, benchmark=True)
        for name, function in compiled(convolution, CUDNN_ALONE).items():
            peers[name] = _under(peer(function), enabled=True, benchmark=True)
        # In float32 the first of them is that, and as fast (measured on an H200).
        if dtype != torch.float32:
            peers["PyTorch's own"] = _under(peer(), enabled=False, benchmark=False)
    size = torch.Size(shape).numel()
    passes = 2 if backward else 1
    return Case(
        "depthwise_conv2d",
        f"{' x '.join(map(str, shape))}, filter {k}, {'backward' if backward else 'forward'}"
        + (", channels_last" if layout == torch.channels_last else ""),
        dtype,
        inputs,
        backward_of(depthwise_conv2d) if backward else depthwise_conv2d,
        peers,
        exact_backward if backward else convolution,
        (1 + passes) * size * dtype.itemsize,
        # In half precision the matrix units do it, in a fraction of the bytes' time.
        2.0 * passes * k * k * size if dtype == torch.float32 else 0,
    )


def exercise() -> None:
    """Run the kernels at sizes that reach every branch, and compare with the reference."""
    cases = [(*case, torch.contiguous_format) for case in _exercised()]
    cases += [(*case, torch.channels_last) for case in _exercised_channels_last()]
    for shape, k, padding, dtype, layout in cases:
        if padding == "reflect" and k // 2 >= min(shape[2:]):
            continue
        begin("depthwise_conv2d", shape, k, padding, dtype, layout)
        x, gradient = (torch.randn(shape, device="cuda").to(dtype, memory_format=layout) for _ in range(2))
        weight = torch.randn(shape[1], 1, k, k, device="cuda").to(dtype)
        backward = torch.ops.cuda_ext.depthwise_conv2d_backward
        found = depthwise_conv2d(x, weight, padding), *backward(gradient, x, weight, padding, True, True)
        # In float64 on the CPU: the sanitizer would watch PyTorch's kernels too.
        x, weight, gradient = (tensor.double().cpu() for tensor in (x, weight, gradient))
        exact = reference(x, weight, padding), *reference_backward(gradient, x, weight, padding, True, True)
        for a, b in zip(found, exact, strict=True):
            if (a.double().cpu() - b).norm() > (1e-5 if dtype == torch.float32 else 2e-2) * b.norm():
                raise AssertionError(f"depthwise_conv2d differs at {shape}, filter {k}, {padding}, {dtype}, {layout}")


def _exercised() -> Iterator[tuple[tuple[int, ...], int, str, torch.dtype]]:
    # One image a stage and several, one tile and several, each width of move.
    for shape in ((3, 2, 20, 24), (40, 2, 7, 7), (2, 1, 9, 131)):
        for k in (3, 9):
            for padding in PADDINGS:
                yield shape, k, padding, torch.float32
        yield shape, 5, "zeros", torch.float16
        yield shape, 7, "reflect", torch.bfloat16
        yield shape, 11, "replicate", torch.float16
    yield (2, 1, 70, 72), 7, "zeros", torch.float32
    yield (2, 1, 70, 72), 9, "zeros", torch.float32
    for k in (3, 7):
        yield (3, 2, 56, 56), k, "zeros", torch.bfloat16
    yield (2, 2, 20, 22), 1, "reflect", torch.float32
    yield (2, 2, 20, 22), 31, "zeros", torch.float32
    yield (2, 2, 5, 6), 3, "reflect", torch.float32


def _exercised_channels_last() -> Iterator[tuple[tuple[int, ...], int, str, torch.dtype]]:
    # One piece of the channels and several, broken ones; tiles that the image does not fill; one copied.
    for shape in ((2, 8, 9, 7), (2, 136, 6, 37), (1, 72, 21, 5), (2, 3, 8, 9)):
        for k, dtype in ((3, torch.float32), (5, torch.bfloat16), (7, torch.float16)):
            yield shape, k, "zeros", dtype
        yield shape, 7, "replicate", torch.float32
        yield shape, 3, "reflect", torch.bfloat16
    yield (2, 8, 12, 10), 9, "zeros", torch.float32
