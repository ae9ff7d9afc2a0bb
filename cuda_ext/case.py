"""The cases that a kernel's folder gives the benchmark: each is one operation on inputs of one shape and dtype."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

# fp32 arithmetic outside the matrix units on one H200, as a kernel can reach it.
FP32_FLOPS = 60e12
# The mode of torch.compile that tries the most kernels, without CUDA graphs of its own.
STRONGEST = "max-autotune-no-cudagraphs"
# torch.compile's setting for convolutions of few channels: cuDNN alone. The other choices are Triton's products of
# matrices; with a filter per channel the best of them took 22.7 ms where cuDNN takes 0.093 ms, and trying them takes
# 11 s per case.
CUDNN_ALONE = {"max_autotune_conv_backends": "ATEN"}
Run = Callable[..., Tensor | tuple[Tensor, ...]]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Case:
    """One line of the benchmark's table.

    inputs(): fresh random inputs on the GPU, one set a call.
    function, peers: the operation and what a user would call instead, by name; each takes one set of inputs and
    returns a tensor or a tuple of tensors. A case of the backward pass returns gradients.
    exact: the same in float64, from inputs of float64 (what is not floating point comes as it is); what the error is
    measured against.
    bytes: the fewest bytes that device memory must move, each input read once and each output written once.
    flops: the arithmetic that must be done, flops_per_second: the rate of the unit that does it.
    before(*inputs): what comes before each call, not timed. ``pairs`` alone calls it, where the inputs lie on the CPU.
    replays: function and peers replay CUDA graphs of their own, as training steps do; ``pairs`` alone times them.
    """

    kernel: str
    shape: str
    dtype: torch.dtype
    inputs: Callable[[], tuple[Tensor, ...]]
    function: Run
    peers: Mapping[str, Run]
    exact: Run
    bytes: int
    flops: float = 0
    flops_per_second: float = FP32_FLOPS
    before: Callable[..., None] | None = None
    replays: bool = False


def begin(kernel: str, *case: object) -> None:
    """Print which case of ``exercise`` begins: one that does not end is then known."""
    print(kernel, *case, flush=True)


def compiled_strongest(function: Function, options: dict[str, Any] | None = None) -> Function:
    """``function`` by torch.compile in its strongest mode, with ``options`` of its backend beside the mode's own.

    The benchmark captures it in a CUDA graph, so the mode makes none of its own.
    """
    strongest = torch._inductor.list_mode_options(STRONGEST) | (options or {})
    compiled_function: Any = torch.compile(function, dynamic=False, options=strongest)
    return compiled_function


def compiled(function: Function, options: dict[str, Any] | None = None) -> dict[str, Function]:
    """``function`` by torch.compile, by peer's name: as it comes, and as ``compiled_strongest``."""
    plain: Any = torch.compile(function, dynamic=False)
    return {"torch.compile": plain, "torch.compile, max-autotune": compiled_strongest(function, options)}


def backward_of(function: Run) -> Callable[..., tuple[Tensor, ...]]:
    """The backward pass of ``function`` alone, as a function of its inputs followed by the gradient of its result.

    The forward pass is run once for each set of inputs, on the first call with it, and its graph is kept. Gradients are
    returned for the inputs that ask for one.
    """
    results: dict[int, Any] = {}

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        *given, gradient = inputs
        if id(gradient) not in results:
            results[id(gradient)] = function(*given)
        wanted = [tensor for tensor in given if tensor.requires_grad]
        return torch.autograd.grad(results[id(gradient)], wanted, gradient, retain_graph=True)

    return run


def forward_and_backward_of(function: Run) -> Callable[..., tuple[Tensor, ...]]:
    """Both passes of ``function``, as a function of its inputs followed by the gradient of its result."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        *given, gradient = inputs
        wanted = [tensor for tensor in given if tensor.requires_grad]
        return torch.autograd.grad(function(*given), wanted, gradient)

    return run
