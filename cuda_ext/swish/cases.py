"""Swish's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.case import Case, Run, backward_of, begin, compiled
from cuda_ext.swish import HALF, reference, reference_backward, reference_backward_beta, swish

Kind = Literal["none", "scalar", "channel"]
ROWS = (131072, 1024)
IMAGES = (512, 256, 32, 32)


def bench_cases() -> Iterator[Case]:
    for dtype in (torch.float32, torch.bfloat16):
        for kind in ("none", "scalar", "channel"):
            yield _case(ROWS, kind, dtype, backward=False)
            yield _case(ROWS, kind, dtype, backward=True)
    yield _case(IMAGES, "channel", torch.float32, backward=True)
    yield _case(IMAGES, "channel", torch.float32, backward=True, memory_format=torch.channels_last)


def _case(
    shape: tuple[int, ...],
    kind: Kind,
    dtype: torch.dtype,
    *,
    backward: bool,
    memory_format: torch.memory_format = torch.contiguous_format,
) -> Case:
    """``kind``: beta fixed at 1, a trained scalar or trained and one per channel, in x's dtype as the peers have it."""

    def inputs() -> tuple[Tensor, ...]:
        x = torch.randn(shape, device="cuda", dtype=dtype).contiguous(memory_format=memory_format)
        size = {"none": None, "scalar": (), "channel": shape[1:2]}[kind]
        given = (x,) if size is None else (x, torch.empty(size, device="cuda", dtype=dtype).uniform_(0.5, 1.5))
        if not backward:
            return given
        return *(tensor.requires_grad_() for tensor in given), torch.randn_like(x)

    def written_out(x: Tensor, beta: Tensor | None = None) -> Tensor:
        if beta is None:
            return x * torch.sigmoid(x)
        return x * torch.sigmoid((beta.reshape(-1, *[1] * (x.ndim - 2)) if beta.ndim else beta) * x)

    way: Callable[[Run], Run] = backward_of if backward else lambda function: function
    peers: dict[str, Run] = {"eager": written_out, **compiled(written_out)}
    if kind == "none":
        peers["F.silu"] = functional.silu
    peers = {name: way(peer) for name, peer in peers.items()}
    described = " ".join(
        [
            " x ".join(map(str, shape)),
            {"none": "beta 1", "scalar": "one beta", "channel": "a beta a channel"}[kind],
            *(["channels last"] if memory_format == torch.channels_last else []),
        ]
    )
    size = torch.Size(shape).numel() * dtype.itemsize
    name = "swish backward" if backward else "swish"
    return Case(name, described, dtype, inputs, way(swish), peers, way(written_out), (3 if backward else 2) * size)


def exercise() -> None:
    """Run the kernels on shapes, strides and betas that reach every branch, and compare with the reference."""
    shapes = [(0, 3), (7, 5), (33, 1030), (3, 7, 3, 3), (2, 20, 30, 31), (2, 3, 70, 67)]
    # float16 runs the same code as bfloat16.
    few = itertools.product((torch.float16,), shapes[2:4])
    for dtype, shape in itertools.chain(itertools.product((torch.float32, torch.bfloat16), shapes), few):
        begin("swish", shape, dtype)
        last_first = torch.randn(shape[::-1], device="cuda").to(dtype).permute(*reversed(range(len(shape))))
        for x in (last_first, last_first.contiguous()[..., 1:]):
            gradient = torch.randn_like(x)
            betas = [None, torch.randn((), device="cuda"), torch.randn(shape[1:2], device="cuda")[: x.shape[1]]]
            for beta in betas:
                _compare(x, beta if beta is None or dtype in HALF else beta.to(dtype), gradient)


def _compare(x: Tensor, beta: Tensor | None, gradient: Tensor) -> None:
    limit = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}[x.dtype]
    operations = torch.ops.reread_kernels
    computed = [operations.swish(x, beta), operations.swish_backward(gradient, x, beta)]
    # On the CPU: what the sanitizer watches is then little but the kernels.
    wide: list[Any] = [tensor if tensor is None else tensor.cpu().double() for tensor in (gradient, x, beta)]
    exact = [reference(*wide[1:]), reference_backward(*wide)]
    if beta is not None:
        computed += operations.swish_backward_beta(gradient, x, beta)
        exact += reference_backward_beta(*wide)
    for a, b in zip(computed, exact, strict=True):
        if not (a.cpu().double() - b).norm() <= limit * (b.norm() + 1):
            raise AssertionError(f"swish is wrong on {tuple(x.shape)} of {x.dtype}, strides {x.stride()}")
