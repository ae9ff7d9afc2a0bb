"""Swish, x sigmoid(beta x), which keeps x alone for its backward pass.

Source: Ramachandran, Zoph and Le, Searching for Activation Functions, 2017, arXiv 1710.05941, section 5.
Left to autograd the product keeps sigmoid(beta x) beside x; here it is computed again from x, which in a
DenseNet, where activations fill the memory, saves half of what the activation holds.

The kernels are in swish.cu. They are bound by memory: one pass each way, which gives beta's gradient too.
"""

from typing import Any

import torch
from torch import Tensor

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
HALF = (torch.float16, torch.bfloat16)


def swish(x: Tensor, beta: Tensor | None = None) -> Tensor:
    """Return x sigmoid(beta x), of the shape, dtype and memory order of ``x``; half precision is rounded once.

    - ``x``: float64, float32, float16 or bfloat16; [N, C, ...] where beta is per channel, else any shape and any
      strides (what has gaps or overlaps is copied first).
    - ``beta``: None (which is 1), a scalar tensor, or [C], one per channel; on x's device, of x's dtype or, where x is
      half, float32, under autocast and without. It gets a gradient, in its own dtype, if it asks for one.

    Raises ValueError, naming what came, for anything else.

    >>> x = torch.tensor([-1.0, 0.0, 2.0], requires_grad=True)
    >>> y = swish(x, torch.tensor(1.5))
    >>> y.detach()
    tensor([-0.1824,  0.0000,  1.9051])
    >>> y.sum().backward()
    >>> x.grad
    tensor([-0.0413,  0.5000,  1.0881])
    """
    return torch.ops.reread_kernels.swish(x, beta)


def reference(x: Tensor, beta: Tensor | None) -> Tensor:
    """Equals ``x * torch.sigmoid(beta * x)``, computed in float32 where x is half."""
    wide = _wide(x)
    return (wide * _gate(wide, beta)).to(x.dtype)


def reference_backward(gradient: Tensor, x: Tensor, beta: Tensor | None) -> Tensor:
    """Equals autograd's gradient of x: gradient (gate + beta x gate (1 - gate)), gate being sigmoid(beta x)."""
    wide = _wide(x)
    gate = _gate(wide, beta)
    # Of two memory orders PyTorch takes the first operand's, here x's.
    return (torch.addcmul(gate, _scaled(wide * gate, beta), 1 - gate) * _wide(gradient)).to(x.dtype)


def reference_backward_beta(gradient: Tensor, x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Equals autograd's gradients of x, as above, and of beta: the sum of gradient x^2 gate (1 - gate)."""
    wide, wide_gradient = _wide(x), _wide(gradient)
    gate = _gate(wide, beta)
    value, rest = wide * gate, 1 - gate
    gradient_x = torch.addcmul(gate, _scaled(value, beta), rest) * wide_gradient
    return gradient_x.to(x.dtype), _summed(wide_gradient * (value * (wide * rest)), beta)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALF else tensor


def _gate(wide: Tensor, beta: Tensor | None) -> Tensor:
    return torch.sigmoid(_scaled(wide, beta))


def _scaled(wide: Tensor, beta: Tensor | None) -> Tensor:
    """beta times ``wide``, channel by channel if it is one per channel."""
    if beta is None:
        return wide
    beta = beta.to(wide.dtype)
    return wide * (beta if beta.ndim == 0 else beta.reshape(-1, *[1] * (wide.ndim - 2)))


def _summed(elements: Tensor, beta: Tensor) -> Tensor:
    """The sum of ``elements`` over all that shares one beta, of beta's shape and dtype."""
    others = [axis for axis in range(elements.ndim) if axis != 1 or beta.ndim == 0]
    return elements.sum(others).to(beta.dtype)


def check(x: Tensor, beta: Tensor | None) -> None:
    """Refuse what the kernel does not take."""
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"swish takes x of {known}, got {x.dtype}")
    if beta is None:
        return
    if beta.device != x.device:
        raise ValueError(f"swish takes x and beta on one device, got {x.device} and {beta.device}")
    if beta.dtype != x.dtype and not (x.dtype in HALF and beta.dtype == torch.float32):
        raise ValueError(
            f"swish takes beta of x's dtype or, where x is half, float32; got x of {x.dtype} and beta of {beta.dtype}"
        )
    if beta.ndim != 0 and not (beta.ndim == 1 and x.ndim >= 2 and beta.shape[0] == x.shape[1]):
        raise ValueError(
            f"beta must be a scalar or one per channel, [C] for x of [N, C, ...], "
            f"not of shape {tuple(beta.shape)} for x of {tuple(x.shape)}"
        )


def check_backward(gradient: Tensor, x: Tensor, beta: Tensor | None) -> None:
    check(x, beta)
    if (gradient.shape, gradient.dtype, gradient.device) != (x.shape, x.dtype, x.device):
        raise ValueError(
            f"the gradient of swish must be as x, {tuple(x.shape)} of {x.dtype} on {x.device}, "
            f"got {tuple(gradient.shape)} of {gradient.dtype} on {gradient.device}"
        )


def _run(x: Tensor, beta: Tensor | None) -> Tensor:
    check(x, beta)
    return (kernel("swish", x) or reference)(x, beta)


def _run_backward(gradient: Tensor, x: Tensor, beta: Tensor | None) -> Tensor:
    check_backward(gradient, x, beta)
    return (kernel("swish_backward", x) or reference_backward)(gradient, x, beta)


def _run_backward_beta(gradient: Tensor, x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    check_backward(gradient, x, beta)
    return (kernel("swish_backward_beta", x) or reference_backward_beta)(gradient, x, beta)


def _shape(x: Tensor, beta: Tensor | None) -> Tensor:
    check(x, beta)
    return torch.empty_like(x)


def _shape_backward(gradient: Tensor, x: Tensor, beta: Tensor | None) -> Tensor:
    check_backward(gradient, x, beta)
    return torch.empty_like(x)


def _shape_backward_beta(gradient: Tensor, x: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    check_backward(gradient, x, beta)
    return torch.empty_like(x), torch.empty_like(beta, memory_format=torch.contiguous_format)


def _keep(ctx: Any, inputs: tuple[Tensor | None, ...], output: Tensor | tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
    x, beta = ctx.saved_tensors
    if ctx.needs_input_grad[1]:
        return torch.ops.reread_kernels.swish_backward_beta(gradient, x, beta)
    return torch.ops.reread_kernels.swish_backward(gradient, x, beta), None


def _backward_twice(ctx: Any, for_x: Tensor, for_beta: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The backward pass's own gradients, in operations of PyTorch's, which have gradients of any order in turn.

    With s the sigmoid of z = beta x, the pass gives g (s + z s') for x and the sum of g x^2 s' for beta; the
    derivative of s + z s' by z is 2 s' + z s''. ``for_x`` and ``for_beta`` are the gradients of the two.
    """
    gradient, x, beta = ctx.saved_tensors
    g, wide, by_x = _wide(gradient), _wide(x), _wide(for_x)
    z = _scaled(wide, beta)
    gate = torch.sigmoid(z)
    first = gate * (1 - gate)
    second = first * (1 - 2 * gate)
    bend = 2 * first + z * second
    to_gradient, to_x, to_beta = by_x * (gate + z * first), _scaled(by_x * bend, beta), by_x * wide * bend
    if for_beta is not None:
        by_beta = _scaled(torch.ones_like(wide), for_beta)
        to_gradient = to_gradient + by_beta * wide**2 * first
        to_x = to_x + by_beta * wide * bend
        to_beta = to_beta + by_beta * wide**3 * second
    wanted = beta is not None and ctx.needs_input_grad[2]
    return to_gradient.to(x.dtype), (g * to_x).to(x.dtype), _summed(g * to_beta, beta) if wanted else None


define("swish(Tensor x, Tensor? beta) -> Tensor", _run, _shape, backward=_backward, setup_context=_keep)
define(
    "swish_backward(Tensor gradient, Tensor x, Tensor? beta) -> Tensor",
    _run_backward,
    _shape_backward,
    backward=_backward_twice,
    setup_context=_keep,
)
define(
    "swish_backward_beta(Tensor gradient, Tensor x, Tensor beta) -> (Tensor, Tensor)",
    _run_backward_beta,
    _shape_backward_beta,
    backward=_backward_twice,
    setup_context=_keep,
)
