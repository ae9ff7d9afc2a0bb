"""Cases of batch norm with its activation: those that the benchmark times, and small odd ones for compute-sanitizer."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from cuda_ext.batch_norm_activation import ACTIVATIONS, DTYPES, batch_norm_activation
from cuda_ext.case import Case, Run, backward_of, begin, compiled

# What the last layer of DenseNet-121's first block reads, at 224 pixels and 128 images, and a bottleneck of
# DenseNet-BC-100-12, at 32 pixels and 512 images.
WIDE, NARROW = (128, 256, 56, 56), (512, 48, 32, 32)


def bench_cases() -> Iterator[Case]:
    for shape, dtype in ((WIDE, torch.bfloat16), (NARROW, torch.bfloat16), (NARROW, torch.float32)):
        yield _case(shape, dtype, "swish", backward=False)
        yield _case(shape, dtype, "swish", backward=True)
    for activation in ("relu", "gelu"):
        yield _case(WIDE, torch.bfloat16, activation, backward=True)


def _operation(activation: str) -> Callable[..., Tensor]:
    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return batch_norm_activation(x, weight, bias, None, None, training=True, activation=activation)

    return run


def _eager(activation: str) -> Callable[..., Tensor]:
    activate: Any = {"relu": functional.relu, "swish": functional.silu, "gelu": functional.gelu}[activation]

    def run(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return activate(functional.batch_norm(x, None, None, weight, bias, True))

    return run


def _case(shape: tuple[int, ...], dtype: torch.dtype, activation: str, backward: bool) -> Case:
    def inputs() -> tuple[Tensor, ...]:
        x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=torch.channels_last)
        weight, bias = torch.rand(2, shape[1], device="cuda") + 0.5
        if not backward:
            return x, weight, bias
        return *(tensor.requires_grad_() for tensor in (x, weight, bias)), torch.randn_like(x)

    run, eager = _operation(activation), _eager(activation)
    way: Callable[[Run], Run] = backward_of if backward else lambda function: function
    peers = {name: way(peer) for name, peer in {"eager": eager, **compiled(eager)}.items()}
    size = dtype.itemsize * torch.Size(shape).numel()
    # What one walk reads is not in the caches at the next: forward it reads x twice and writes y, backward it reads x
    # and dy twice and writes dx.
    name = f"{'backward' if backward else 'forward'} {activation} {'x'.join(map(str, shape))}"
    bytes_ = (5 if backward else 3) * size
    return Case("batch_norm_activation", name, dtype, inputs, way(run), peers, way(eager), bytes_)


# rows, channels, from one row to the next, columns: lanes of 16 bytes and of 8, and single channels.
FEW = ((70, 5, 5, 5), (37, 12, 24, 16))
MORE = (*FEW, (130, 40, 64, 40), (16, 300, 304, 304))


def exercise() -> None:
    """Run the kernels at shapes that reach every branch, and compare with the reference."""
    for dtype in DTYPES:
        for shape in MORE if dtype == torch.bfloat16 else FEW:
            _exercise_parts(dtype, *shape)
        x = torch.randn(2, 5, 7, 16, device="cuda").to(dtype).movedim(-1, 1).requires_grad_()
        weight, bias = torch.rand(2, 16, device="cuda")
        batch_norm_activation(x, weight, bias, None, None, training=True, pooled=True).sum().backward()


def _exercise_parts(dtype: torch.dtype, rows: int, channels: int, stride: int, columns: int) -> None:
    x = torch.randn(rows, stride, device="cuda").to(dtype)[:, :channels]
    dy = torch.randn(rows, columns, device="cuda").to(dtype)
    weight, bias, mean, variance = torch.rand(4, channels, device="cuda") + 0.5
    for activation in (ACTIVATIONS.index("relu"), ACTIVATIONS.index("swish"), ACTIVATIONS.index("gelu")):
        beta = torch.tensor(1.2, device="cuda") if ACTIVATIONS[activation] == "swish" else None
        given = (weight, bias, mean, variance, beta, activation, 1e-5)
        compare("batch_norm_activation", "batch_norm_activation", x, *given, columns)
        if columns == channels:
            compare("batch_norm_activation", "batch_norm_activation_backward", dy, x, *given, True)
        vectors = torch.ones(2, channels, device="cuda")
        compare("batch_norm_activation", "batch_norm_activation_add_backward", dy, x, *given, True, x.clone(), *vectors)
    compare("batch_norm_activation", "batch_statistics", x)
    compare("batch_norm_activation", "copy_with_statistics", x, x.clone(), mean.clone(), variance.clone())
    compare("batch_norm_activation", "centred_gradient", x, x, mean, weight, bias, columns)


def compare(operation: str, name: str, *arguments: Any) -> None:
    """A kernel of an operation's folder beside its reference on the CPU, with copies of what both may change."""
    begin(operation, name, tuple(arguments[0].shape), arguments[0].dtype)
    own = [a.clone() if isinstance(a, Tensor) and a.is_contiguous() else a for a in arguments]
    others = [a.cpu() if isinstance(a, Tensor) else a for a in arguments]
    computed, expected = fused.part(name, own[0])(*own), fused.REFERENCES[name](*others)
    pairs = zip(_as_list(computed), _as_list(expected), strict=True)
    for a, b in [*pairs, *((a, b) for a, b in zip(own, others, strict=True) if isinstance(a, Tensor))]:
        refuse_difference(name, a, b)


def refuse_difference(name: str, computed: Tensor, expected: Tensor) -> None:
    difference = computed.detach().double().cpu() - expected.double().cpu()
    if float(difference.norm()) > 3e-2 * float(expected.double().norm()) + 1e-3:
        raise AssertionError(f"{name} differs from its reference for {computed.dtype} of shape {tuple(computed.shape)}")


def _as_list(results: Tensor | tuple[Tensor, ...] | None) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results or [])
