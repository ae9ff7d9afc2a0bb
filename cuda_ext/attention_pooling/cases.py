"""Attention pooling's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_ext.attention_pooling import attention_pooling, attention_pooling_ragged
from cuda_ext.case import Case, Run, begin, compiled, forward_and_backward_of

# Rows, steps: a batch of sentences as words, and one of documents as sentences.
SHAPES = ((5120, 30), (64, 20))
WIDTH = 100
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# Products on one H200's matrix units: torch.mm of bfloat16 at 8192^3; float32 takes three of them.
MATRIX_FLOPS = {torch.float32: 229e12, torch.bfloat16: 686e12, torch.float16: 686e12}


def bench_cases() -> Iterator[Case]:
    for rows, steps in SHAPES:
        for dtype in DTYPES:
            yield _case(rows, steps, dtype, full=False, backward=True)
            yield _case(rows, steps, dtype, full=False, backward=False)
    for dtype in (torch.float32, torch.bfloat16):
        yield _case(*SHAPES[0], dtype, full=True, backward=True)
    yield _ragged(5120, 30, torch.float32)


def _inputs(rows: int, steps: int, dtype: torch.dtype, full: bool, backward: bool) -> tuple[Tensor, ...]:
    """States, lengths, mask, weight, bias and context, and for the backward pass the gradient of the result."""
    random: dict[str, Any] = {"device": "cuda", "dtype": dtype, "requires_grad": backward}
    states = torch.randn(rows, steps, WIDTH, **random)
    lengths = torch.full((rows,), steps, device="cuda") if full else torch.randint(1, steps + 1, (rows,), device="cuda")
    mask = torch.arange(steps, device="cuda") < lengths.unsqueeze(-1)
    weight = torch.randn(WIDTH, WIDTH, device="cuda", dtype=dtype).mul_(WIDTH**-0.5).requires_grad_(backward)
    bias, context = (torch.randn(WIDTH, **random) for _ in range(2))
    gradient = torch.randn(rows, WIDTH, device="cuda", dtype=dtype)
    return (states, lengths, mask, weight, bias, context, *([gradient] if backward else []))


def _own(states: Tensor, lengths: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, context: Tensor) -> Tensor:
    return attention_pooling(states, lengths, weight, bias, context)[0]


def _eager(states: Tensor, lengths: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, context: Tensor) -> Tensor:
    scores = torch.tanh(F.linear(states, weight, bias)) @ context
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights.unsqueeze(-1) * states).sum(1)


def _product(states: Tensor, lengths: Tensor, mask: Tensor, weight: Tensor, bias: Tensor, context: Tensor) -> Tensor:
    scores = torch.tanh(F.linear(states, weight, bias)) @ context
    weights = scores.masked_fill(~mask, float("-inf")).softmax(-1)
    return (weights.unsqueeze(1) @ states).squeeze(1)


def _case(rows: int, steps: int, dtype: torch.dtype, full: bool, backward: bool) -> Case:
    wrap: Callable[[Run], Run] = forward_and_backward_of if backward else _forward_of
    peers: dict[str, Run] = {"eager": _eager, **compiled(_eager), "eager, matrix product": _product}
    peers |= {f"{name}, matrix product": peer for name, peer in compiled(_product).items()}
    peers = {name: wrap(peer) for name, peer in peers.items()}
    real = rows * (steps if full else (steps + 1) / 2)
    shape = (
        f"{rows} x {steps} x {WIDTH}, {'full' if full else 'lengths 1 to'} {steps}, {'both' if backward else 'forward'}"
    )
    return Case(
        "attention_pooling",
        shape,
        dtype,
        lambda: _inputs(rows, steps, dtype, full, backward),
        wrap(_own),
        peers,
        wrap(_eager),
        _bytes(rows, rows * steps, real, dtype, backward),
        _flops(real, backward),
        MATRIX_FLOPS[dtype],
    )


def _ragged(rows: int, steps: int, dtype: torch.dtype) -> Case:
    """The real steps alone, packed; its peer pads them first."""

    def inputs() -> tuple[Tensor, ...]:
        lengths = torch.randint(1, steps + 1, (rows,), device="cuda")
        mask = torch.arange(steps, device="cuda") < lengths.unsqueeze(-1)
        offsets = F.pad(lengths.cumsum(0), (1, 0))
        _, _, _, *parameters = _inputs(1, 1, dtype, True, False)
        return torch.randn(int(offsets[-1]), WIDTH, device="cuda", dtype=dtype), offsets, mask, *parameters

    def own(states: Tensor, offsets: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        return attention_pooling_ragged(states, offsets, *parameters)[0]

    def padded(states: Tensor, offsets: Tensor, mask: Tensor, *parameters: Tensor) -> Tensor:
        row = torch.arange(steps, device="cuda") + offsets[:-1].unsqueeze(-1)
        return _eager(states[row.clamp(max=len(states) - 1)], offsets, mask, *parameters)

    real = rows * (steps + 1) / 2
    peers = {"padded, eager": padded} | {f"padded, {name}": peer for name, peer in compiled(padded).items()}
    shape = f"{rows} ragged rows of 1 to {steps} x {WIDTH}, forward"
    bytes_ = _bytes(rows, real, real, dtype, False)
    return Case(
        "attention_pooling", shape, dtype, inputs, own, peers, padded, bytes_, _flops(real, False), MATRIX_FLOPS[dtype]
    )


def _forward_of(function: Run) -> Run:
    def run(*inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        with torch.no_grad():
            return function(*inputs)

    return run


def _bytes(rows: int, steps: float, real: float, dtype: torch.dtype, backward: bool) -> int:
    """Real steps read once a pass, weights written, pooled written; backward, gradients written at padding too."""
    forward = (real + rows) * WIDTH * dtype.itemsize + 4 * steps
    return int(forward + backward * ((real + steps + 2 * rows) * WIDTH * dtype.itemsize + 4 * real))


def _flops(real: float, backward: bool) -> float:
    """One product forward and two backward; that the kernels do one again is their cost."""
    return 2 * real * WIDTH * WIDTH * (3 if backward else 1)


def exercise() -> None:
    """Run the kernels on small odd shapes that reach every branch, and compare with the plain formula in float64."""
    small = (3, 20, 100, 100)
    # More than 16 steps a multiprocessor, in each class of widths.
    large = [(70, 40, 100, 97), (70, 40, 64, 60), (70, 40, 128, 120)]
    cases = {
        torch.float32: [small, *large, (5, 37, 64, 50), (1, 150, 17, 33), (3, 33, 101, 128)],
        torch.bfloat16: [small, *large, (3, 3, 64, 64)],
        torch.float16: [small, *large],
    }
    for dtype, shapes in cases.items():
        for rows, steps, width, units in shapes:
            begin("attention_pooling", rows, steps, width, units, dtype)
            _compare(rows, steps, width, units, dtype)


def _compare(rows: int, steps: int, width: int, units: int, dtype: torch.dtype) -> None:
    states = torch.randn(rows, steps, width, device="cuda").to(dtype)
    lengths = torch.randint(0, steps + 1, (rows,), device="cuda")
    # Where no sequence has two steps, the gradients of all parameters are zero.
    lengths[0] = steps
    mask = torch.arange(steps, device="cuda") < lengths.unsqueeze(-1)
    shapes = ((units, width), (units,), (units,))
    parameters = [(torch.randn(shape, device="cuda") * shape[-1] ** -0.5).to(dtype) for shape in shapes]
    inputs = [tensor.requires_grad_() for tensor in (states, *parameters)]
    gradient = torch.randn(rows, width, device="cuda").to(dtype)
    pooled, weights = attention_pooling(inputs[0], lengths, *inputs[1:])
    padded = [pooled, *torch.autograd.grad([pooled, weights], inputs, [gradient, torch.ones_like(weights)])]
    packed = states.detach()[mask].requires_grad_()
    offsets = F.pad(lengths.cumsum(0), (1, 0))
    pooled, weights = attention_pooling_ragged(packed, offsets, *inputs[1:])
    ragged = torch.autograd.grad([pooled, weights], (packed, *inputs[1:]), [gradient, torch.ones_like(weights)])
    doubles = [tensor.detach().double().requires_grad_() for tensor in inputs]
    some = lengths > 0
    exact = _eager(doubles[0], lengths, mask | ~some.unsqueeze(-1), *doubles[1:]) * some.unsqueeze(-1)
    expected = [exact, *torch.autograd.grad(exact, doubles, gradient.double())]
    allowed = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}[dtype]
    for got in (padded, [pooled, *ragged]):
        expected[1] = expected[1][mask] if got[1].dim() == 2 else expected[1]
        for a, b in zip(got, expected, strict=True):
            if not (a.double() - b).norm() <= allowed * b.norm():
                raise AssertionError(f"attention_pooling is wrong at {rows} x {steps} x {width} x {units} of {dtype}")
