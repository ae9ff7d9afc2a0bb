"""Register an operation with PyTorch: on the CPU and the GPU, for tracing, for gradients and for autocast."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32)
# The library keeps what it registers for as long as it lives.
_library = torch.library.Library("reread_kernels", "FRAGMENT")


def define(
    schema: str,
    run: Callable[..., Any],
    shape: Callable[..., Any],
    *,
    backward: Callable[..., Any] | None = None,
    setup_context: Callable[..., None] | None = None,
    autocast: Callable[..., Any] | None = None,
) -> None:
    """Define ``torch.ops.reread_kernels.NAME`` by its schema, ``NAME(Tensor x, ...) -> Tensor``.

    run: what it does, on either device: checks, then the kernel or its reference.
    shape: the fake kernel: empty tensors of the result's shape, dtype and strides, from fake ones.
    backward, setup_context: as ``torch.library.register_autograd`` takes them; without them it has no gradient.
    autocast: called with the device's type before the arguments, where autocast is on; it casts and calls the
    operation again with autocast off. Without it autocast changes nothing.
    """
    name = schema.split("(", 1)[0]
    _library.define(schema)
    for device in ("CPU", "CUDA"):
        _library.impl(name, run, device)
        if autocast is not None:
            _library.impl(name, _off_for(device.lower(), autocast), f"Autocast{device}")
    torch.library.register_fake(f"reread_kernels::{name}", shape, lib=_library)
    if backward is not None:
        torch.library.register_autograd(f"reread_kernels::{name}", backward, setup_context=setup_context, lib=_library)


def refuse_mixed(name: str, what: str, tensors: Sequence[Tensor]) -> None:
    """Raise ValueError unless all ``tensors``, ``what`` the operation ``name`` takes, are alike: FLOATS, one device."""
    kinds = {(tensor.dtype, tensor.device) for tensor in tensors}
    if len(kinds) > 1 or any(dtype not in FLOATS for dtype, _ in kinds):
        came = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise ValueError(f"{name} takes {what} all of float32, or all of float64, on one device, got {came}")


def in_autocast(device: str, *tensors: Tensor | None) -> tuple[Any, ...]:
    """The tensors as autocast gives them to a matrix product: in its dtype; float64, integers and None as they are."""
    dtype = torch.get_autocast_dtype(device)
    return tuple(
        tensor
        if tensor is None or tensor.dtype == torch.float64 or not tensor.is_floating_point()
        else tensor.to(dtype)
        for tensor in tensors
    )


def parameters_in_autocast(x: Tensor, *parameters: Tensor | None) -> tuple[Tensor | None, ...]:
    """Parameters for a kernel that rounds float32 ones itself, beside ``x`` as autocast has it.

    Beside float64, and where each is float32 or of x's dtype, they stay; else all are cast to x's.
    """
    kept = (x.dtype, torch.float32)
    if x.dtype == torch.float64 or all(tensor is None or tensor.dtype in kept for tensor in parameters):
        return parameters
    return tuple(None if tensor is None else tensor.to(x.dtype) for tensor in parameters)


def _off_for(device: str, autocast: Callable[..., Any]) -> Callable[..., Any]:
    def cast(*arguments: Any) -> Any:
        with torch.autocast(device, enabled=False):
            return autocast(device, *arguments)

    return cast
