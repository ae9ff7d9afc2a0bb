"""AdamW's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext.adamw import adamw, reference
from cuda_ext.bench import relative_error
from cuda_ext.case import Case, begin, compiled

Shapes = Sequence[tuple[int, ...]]
# Numbers of float32, to which the kernel rounds them, as PyTorch's does.
BETAS, EPSILON = (1 - 2**-3, 1 - 2**-10), 1e-8
# A single number may be the small difference of two.
LARGEST_ERROR = 1e-5


def gru(inputs: int, units: int) -> Shapes:
    return [(3 * units, inputs), (3 * units, units), (3 * units,), (3 * units,)] * 2


# HAN with a vocabulary of 50,000 vectors of 200, 2 x 50 units and 5 classes.
ATTENTION = [(100, 100), (100,), (100,)]
HAN = [(50_000, 200), *gru(200, 50), *ATTENTION, *gru(100, 50), *ATTENTION, (5, 100), (5,)]


def densenet() -> Iterator[tuple[int, ...]]:
    """The parameters of DenseNet-121 (Huang et al. 2017, table 1), a thousand classes."""
    channels = 64
    yield from [(channels, 3, 7, 7), (channels,), (channels,)]
    for layers in (6, 12, 24, 16):
        for _ in range(layers):
            yield from [(channels,), (channels,), (128, channels, 1, 1), (128,), (128,), (32, 128, 3, 3)]
            channels += 32
        yield from [(channels,), (channels,)]
        if layers != 16:
            yield (channels // 2, channels, 1, 1)
            channels //= 2
    yield from [(1000, channels), (1000,)]


def bench_cases() -> Iterator[Case]:
    yield _case("one tensor of 10^7", [(10_000_000,)], compiled(plain))
    yield _case(f"HAN's {len(HAN)} tensors", HAN, compiled(plain))
    shapes = list(densenet())
    yield _case(f"DenseNet-121's {len(shapes)} tensors", shapes, {})


def _case(name: str, shapes: Shapes, peers: dict[str, Callable[..., tuple[Tensor, ...]]]) -> Case:
    numbers = sum(torch.Size(shape).numel() for shape in shapes)
    return Case(
        "adamw",
        name,
        torch.float32,
        lambda: drawn(shapes),
        ours,
        {"PyTorch, fused": by_group, **peers},
        by_group,
        28 * numbers,
    )


def drawn(shapes: Shapes) -> tuple[Tensor, ...]:
    """Parameters, gradients, means and squares of the shapes, and steps: as after 10 steps."""
    lists = [[torch.randn(shape, device="cuda") for shape in shapes] for _ in range(4)]
    lists[3] = [square.square() for square in lists[3]]
    return (*itertools.chain(*lists), *(torch.full((), 10.0, device="cuda") for _ in shapes))


def lists_of(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    count = len(tensors) // 5
    return [list(tensors[first : first + count]) for first in range(0, len(tensors), count)]


def settings_of(parameters: Sequence[Tensor]) -> tuple[list[float], list[float]]:
    """Rates and weight decays: matrices decay, and the first tensor learns at a rate of its own."""
    rates = [1e-3 if i else 5e-4 for i in range(len(parameters))]
    return rates, [0.1 if parameter.ndim > 1 else 0.0 for parameter in parameters]


def ours(*tensors: Tensor) -> tuple[Tensor, ...]:
    parameters, gradients, means, squares, steps = lists_of(tensors)
    adamw(parameters, gradients, means, squares, steps, *settings_of(parameters), BETAS, EPSILON)
    return (*parameters, *means, *squares)


def by_group(*tensors: Tensor) -> tuple[Tensor, ...]:
    parameters, gradients, means, squares, steps = lists_of(tensors)
    steps = [step.float() for step in steps]
    rates, weight_decays = settings_of(parameters)
    reference(
        parameters, gradients, means, squares, steps, rates, weight_decays, *BETAS, EPSILON, None, 0.0, None, None
    )
    return (*parameters, *means, *squares)


def plain(*tensors: Tensor) -> tuple[Tensor, ...]:
    parameters, gradients, means, squares, steps = lists_of(tensors)
    for parameter, gradient, mean, square, step, rate, decay in zip(
        parameters, gradients, means, squares, steps, *settings_of(parameters), strict=True
    ):
        step.add_(1)
        parameter.mul_(1 - rate * decay)
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        root = square.sqrt() / (1 - BETAS[1] ** step).sqrt() + EPSILON
        parameter.sub_(rate / (1 - BETAS[0] ** step) * mean / root)
    return (*parameters, *means, *squares)


def exercise() -> None:
    """Run the kernels at sizes, counts and alignments that reach every branch, and compare with the reference."""
    many = [(1 + i % 5,) for i in range(700)]
    for shapes in ([(1,)], [(0,), (5, 3), ()], [(1024,), (1023,), (2500,), (64, 64)], many):
        for offset, scaled, overflow in [(0, False, None), (1, True, 0.0), (0, True, 1.0)]:
            begin("adamw", len(shapes), offset, scaled, overflow)
            tensors = [_shifted(tensor, offset) for tensor in drawn(shapes)]
            extra = [
                torch.full((), 5.0, device="cuda") if offset else None,
                2.0,
                torch.full((), 8.0, device="cuda") if scaled else None,
                None if overflow is None else torch.full((), overflow, device="cuda"),
            ]
            # On the CPU: the sanitizer would watch PyTorch's kernels too.
            exact = [*map(_wide, tensors[: -len(shapes)]), *(tensor.cpu() for tensor in tensors[-len(shapes) :])]
            run: Any
            for run, given, others in ((adamw, tensors, extra), (reference, exact, [*map(_on_cpu, extra)])):
                lists = lists_of(given)
                betas = (BETAS,) if run is adamw else BETAS
                run(*lists, *settings_of(lists[0]), *betas, EPSILON, *others)
            for updated, expected in zip(map(_joined, lists_of(tensors)), map(_joined, lists_of(exact)), strict=True):
                if relative_error(updated, expected) > LARGEST_ERROR:
                    raise AssertionError(f"adamw errs by {relative_error(updated, expected)} at {len(shapes)} tensors")


def _shifted(tensor: Tensor, offset: int) -> Tensor:
    return torch.empty(tensor.numel() + offset, device="cuda")[offset:].view_as(tensor).copy_(tensor)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.cpu().double()


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


def _on_cpu(given: Tensor | float | None) -> Tensor | float | None:
    return given.cpu() if isinstance(given, Tensor) else given
