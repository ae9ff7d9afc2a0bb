"""Depthwise 2D convolution: each channel of an image by a filter of its own, in the image's size, with both gradients.

The kernels are in depthwise_*.cu: small filters are bound by memory, large ones by arithmetic. Channels-last images
have kernels of their own for filters of 3, 5 and 7. Results are equal bit for bit from run to run.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.library import kernel
from cuda_ext.operation import define, in_autocast

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# The values beyond the image's edge, by the number that the kernels take, and functional.pad's name for it.
PADDINGS = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate"}
LARGEST_FILTER = 31


def depthwise_conv2d(x: Tensor, weight: Tensor, padding: str = "zeros") -> Tensor:
    """Correlate each channel of ``x`` with its own filter; the result has ``x``'s shape and dtype.

    x: [batch, channels, height, width]; weight: [channels, 1, k, k] with an odd k from 1 to 31; one device and one
    dtype (float64, float32, float16 or bfloat16, summed in float32), any strides.
    The result is channels_last where ``x`` is channels_last and not contiguous; otherwise it is contiguous, and other
    strides are copied first. On a GPU channels_last tensors are copied to contiguous ones and back for filters other
    than 3, 5 and 7, for channels that are no multiple of 16 bytes, and for more than 2^20 channels. The gradient of
    ``x`` has the result's layout.
    padding: what the filter meets beyond the edge: ``zeros``, ``reflect`` (the edge is not repeated; needs more than
    k // 2 rows and columns) or ``replicate``. Under autocast both tensors are cast to its dtype.
    Gradients, of any order, for both. Raises ValueError, naming what came, for anything else.

    >>> x, weight = torch.ones(1, 2, 3, 3), torch.ones(2, 1, 3, 3)
    >>> weight[1] = 0.5
    >>> depthwise_conv2d(x, weight)
    tensor([[[[4.0000, 6.0000, 4.0000],
              [6.0000, 9.0000, 6.0000],
              [4.0000, 6.0000, 4.0000]],
    <BLANKLINE>
             [[2.0000, 3.0000, 2.0000],
              [3.0000, 4.5000, 3.0000],
              [2.0000, 3.0000, 2.0000]]]])
    """
    return torch.ops.cuda_ext.depthwise_conv2d(x, weight, padding)


def layout_of(x: Tensor) -> torch.memory_format:
    """Return the layout of the result for ``x``. What is both, of one channel or one pixel, is contiguous."""
    last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    return torch.channels_last if last else torch.contiguous_format


def reference(x: Tensor, weight: Tensor, padding: str = "zeros") -> Tensor:
    """Equals ``torch.nn.functional.conv2d(pad(x), weight, groups=channels)``, in the layout of ``x``."""
    layout = layout_of(x)
    # No sum over nothing: the edge of an empty image can not be repeated.
    if x.numel() == 0:
        return torch.empty_like(x, memory_format=layout)
    border = weight.shape[-1] // 2
    if padding == "zeros":
        return functional.conv2d(x, weight, padding=border, groups=x.shape[1]).contiguous(memory_format=layout)
    padded = functional.pad(x, (border,) * 4, mode=PADDINGS[padding])
    return functional.conv2d(padded, weight, groups=x.shape[1]).contiguous(memory_format=layout)


def reference_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, padding: str, wants_x: bool, wants_weight: bool
) -> tuple[Tensor, Tensor]:
    """Equals ``torch.autograd.grad(reference(x, weight, padding), (x, weight), gradient)``."""
    if x.numel() == 0:
        return _gradients(x, weight, wants_x, wants_weight, torch.zeros)
    border = weight.shape[-1] // 2
    sides = (border,) * 4
    padded = x if padding == "zeros" else functional.pad(x, sides, mode=PADDINGS[padding])
    around = [border if padding == "zeros" else 0] * 2
    wanted = [wants_x, wants_weight, False]
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(
        gradient, padded, weight, None, [1, 1], around, [1, 1], False, [0, 0], x.shape[1], wanted
    )
    if wants_x and padding == "reflect":
        of_x = torch.ops.aten.reflection_pad2d_backward(of_x, x, sides)
    elif wants_x and padding == "replicate":
        of_x = torch.ops.aten.replication_pad2d_backward(of_x, x, sides)
    return (
        of_x.contiguous(memory_format=layout_of(x)) if wants_x else x.new_empty(0),
        of_weight.contiguous() if wants_weight else x.new_empty(0),
    )


def check(x: Tensor, weight: Tensor, padding: str) -> None:
    """Refuse what the kernel does not take."""
    if x.device != weight.device:
        raise ValueError(f"depthwise_conv2d takes x and weight on one device, got {x.device} and {weight.device}")
    if x.dtype != weight.dtype or x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(
            f"depthwise_conv2d takes x and weight of one dtype of {known}, got {x.dtype} and {weight.dtype}"
        )
    if x.dim() != 4:
        raise ValueError(f"depthwise_conv2d takes x of [batch, channels, height, width], got {tuple(x.shape)}")
    k = weight.shape[-1] if weight.dim() == 4 else 0
    if weight.dim() != 4 or weight.shape[:2] != (x.shape[1], 1) or weight.shape[2] != k:
        raise ValueError(f"depthwise_conv2d takes weight of [{x.shape[1]}, 1, k, k], got {tuple(weight.shape)}")
    if k % 2 == 0 or k > LARGEST_FILTER:
        raise ValueError(f"depthwise_conv2d takes filters of odd size from 1 to {LARGEST_FILTER}, got {k}")
    if padding not in PADDINGS:
        raise ValueError(f"depthwise_conv2d takes padding {', '.join(PADDINGS)}, got {padding!r}")
    if padding == "reflect" and x.numel() > 0 and k // 2 >= min(x.shape[2:]):
        raise ValueError(
            f"depthwise_conv2d reflects at most one row or column less than the image has: a filter of {k} needs "
            f"more than {k // 2}, got {tuple(x.shape[2:])}"
        )


def _run(x: Tensor, weight: Tensor, padding: str) -> Tensor:
    check(x, weight, padding)
    if compiled := kernel("depthwise_conv2d", x):
        return compiled(x, weight, list(PADDINGS).index(padding))
    return reference(x, weight, padding)


def _shape(x: Tensor, weight: Tensor, padding: str) -> Tensor:
    check(x, weight, padding)
    return torch.empty_like(x, memory_format=layout_of(x))


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, str], output: Tensor) -> None:
    x, weight, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    wants = ctx.needs_input_grad[:2]
    found = torch.ops.cuda_ext.depthwise_conv2d_backward(gradient, x, weight, ctx.padding, *wants)
    return *(tensor if wanted else None for tensor, wanted in zip(found, wants, strict=True)), None


def _cast(device: str, x: Tensor, weight: Tensor, padding: str) -> Tensor:
    """Autocast: as PyTorch's convolutions do, in autocast's dtype; float64 stays."""
    return torch.ops.cuda_ext.depthwise_conv2d(*in_autocast(device, x, weight), padding)


def _check_backward(gradient: Tensor, x: Tensor, weight: Tensor, padding: str) -> None:
    check(x, weight, padding)
    if gradient.shape != x.shape or gradient.dtype != x.dtype or gradient.device != x.device:
        raise ValueError(
            f"depthwise_conv2d_backward takes a gradient like x, got {tuple(gradient.shape)} of {gradient.dtype} on "
            f"{gradient.device} for {tuple(x.shape)} of {x.dtype} on {x.device}"
        )


def _run_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, padding: str, wants_x: bool, wants_weight: bool
) -> tuple[Tensor, Tensor]:
    _check_backward(gradient, x, weight, padding)
    if compiled := kernel("depthwise_conv2d_backward", x):
        return compiled(gradient, x, weight, list(PADDINGS).index(padding), wants_x, wants_weight)
    return reference_backward(gradient, x, weight, padding, wants_x, wants_weight)


def _shape_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, padding: str, wants_x: bool, wants_weight: bool
) -> tuple[Tensor, Tensor]:
    _check_backward(gradient, x, weight, padding)
    return _gradients(x, weight, wants_x, wants_weight, torch.empty)


def _gradients(x: Tensor, weight: Tensor, wants_x: bool, wants_weight: bool, new: Any) -> tuple[Tensor, Tensor]:
    """New tensors for both gradients; what is not wanted is of no elements."""
    of_x = new(x.shape if wants_x else (0,), dtype=x.dtype, device=x.device)
    return (
        of_x.contiguous(memory_format=layout_of(x)) if wants_x else of_x,
        new(weight.shape if wants_weight else (0,), dtype=x.dtype, device=x.device),
    )


def _setup_second(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    gradient, x, weight, ctx.padding, ctx.wants_x, ctx.wants_weight = inputs
    ctx.save_for_backward(gradient, x, weight)
    ctx.set_materialize_grads(False)


def _second(ctx: Any, of_x: Tensor | None, of_weight: Tensor | None) -> tuple[Tensor | None, ...]:
    """The gradients are linear in the result's gradient, the image and the filter, each: so are theirs, in turn."""
    gradient, x, weight = ctx.saved_tensors
    convolve = torch.ops.cuda_ext.depthwise_conv2d
    backward = torch.ops.cuda_ext.depthwise_conv2d_backward
    to_gradient = to_x = to_weight = None
    if ctx.wants_x and of_x is not None:
        if ctx.needs_input_grad[0]:
            to_gradient = convolve(of_x, weight, ctx.padding)
        if ctx.needs_input_grad[2]:
            to_weight = backward(gradient, of_x, weight, ctx.padding, False, True)[1]
    if ctx.wants_weight and of_weight is not None:
        if ctx.needs_input_grad[0]:
            more = convolve(x, of_weight, ctx.padding)
            to_gradient = more if to_gradient is None else to_gradient + more
        if ctx.needs_input_grad[1]:
            to_x = backward(gradient, x, of_weight, ctx.padding, True, False)[0]
    return to_gradient, to_x, to_weight, None, None, None


define(
    "depthwise_conv2d(Tensor x, Tensor weight, str padding) -> Tensor",
    _run,
    _shape,
    backward=_backward,
    setup_context=_setup_context,
    autocast=_cast,
)
define(
    "depthwise_conv2d_backward(Tensor gradient, Tensor x, Tensor weight, str padding, bool wants_x, bool wants_weight)"
    " -> (Tensor, Tensor)",
    _run_backward,
    _shape_backward,
    backward=_second,
    setup_context=_setup_second,
)
