"""A network's first convolution: 2 x 2 patches by fixed filters, a trained bias, and the activation behind it.

For filters that whiten the patches of the training images (models/layers/whitening.py). Such filters subtract numbers
that are nearly equal, so that all arithmetic is float32, and half precision is rounded once, at the end. The kernels
are in patch_convolution.cu: nothing is kept for the backward pass but the images, which are read again.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.batch_norm_activation import ACTIVATIONS, activated, activated_backward
from cuda_ext.library import kernel
from cuda_ext.operation import define, refuse_mixed

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
# What the kernels are compiled for: channels of the images, and filters for each of them.
CHANNELS = (1, 3)
FILTERS_PER_CHANNEL = 8


def patch_convolution(
    images: Tensor, filters: Tensor, bias: Tensor, activation: str = "none", dtype: torch.dtype | None = None
) -> Tensor:
    """Return ``activation(F.conv2d(images, filters, bias))`` in ``dtype``, with channels last in memory.

    - ``images``: [N, C, H, W] of float32 or float64, C being 1 or 3; what is not channels-last is copied first.
    - ``filters``: [8 C, C, 2, 2], of the images' dtype.
    - ``bias``: [8 C], of the images' dtype.
    - ``activation``: "none", "relu", "swish" or "gelu".
    - ``dtype``: the result's, float16, bfloat16 or, by default, that of the images.

    The result is [N, 8 C, H - 1, W - 1]. The bias alone gets a gradient. Autocast changes nothing.
    Raises ValueError, naming what came, for anything else.

    >>> filters = torch.zeros(8, 1, 2, 2)
    >>> filters[0] = 1.0
    >>> bias = torch.full((8,), -5.0)
    >>> patch_convolution(torch.tensor([[[[1.0, 2.0, 3.0], [4.0, 0.0, 6.0]]]]), filters, bias, "relu")[:, :2]
    tensor([[[[2., 6.]],
    <BLANKLINE>
             [[0., 0.]]]])
    """
    dtype = images.dtype if dtype is None else dtype
    return torch.ops.reread_kernels.patch_convolution(images, filters, bias, activation, dtype)


# What the kernels compute, in PyTorch: images and results are [N, H, W, C], contiguous.


def reference(images: Tensor, filters: Tensor, bias: Tensor, activation: int, dtype: torch.dtype) -> Tensor:
    """Equals the activation of ``F.conv2d``, rounded to ``dtype``."""
    return activated(_convolved(images, filters, bias), None, activation).to(dtype).contiguous()


def reference_backward(dy: Tensor, images: Tensor, filters: Tensor, bias: Tensor, activation: int) -> Tensor:
    """Equals autograd's gradient of the bias."""
    z = _convolved(images, filters, bias)
    dz, _ = activated_backward(dy.to(z.dtype), z, None, activation)
    return dz.sum((0, 1, 2))


def _convolved(images: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
    with torch.autocast(images.device.type, enabled=False):
        return functional.conv2d(images.movedim(-1, 1), filters, bias).movedim(1, -1)


def check(images: Tensor, filters: Tensor, bias: Tensor, activation: str, dtype: torch.dtype) -> None:
    """Refuse what the kernels do not take."""
    if activation not in ACTIVATIONS:
        raise ValueError(f"patch_convolution's activation is {', '.join(ACTIVATIONS)}, got {activation!r}")
    refuse_mixed("patch_convolution", "images, filters and bias", (images, filters, bias))
    if images.ndim != 4 or images.shape[1] not in CHANNELS or min(images.shape[2:]) < 2:
        raise ValueError(
            f"patch_convolution takes images [N, C, H, W] of 1 or 3 channels and at least 2 x 2 pixels, "
            f"got {tuple(images.shape)}"
        )
    outputs, channels = FILTERS_PER_CHANNEL * images.shape[1], images.shape[1]
    if filters.shape != (outputs, channels, 2, 2) or bias.shape != (outputs,):
        raise ValueError(
            f"patch_convolution takes filters ({outputs}, {channels}, 2, 2) and a bias ({outputs},) for {channels} "
            f"channels, got {tuple(filters.shape)} and {tuple(bias.shape)}"
        )
    if dtype not in DTYPES or (dtype != images.dtype and torch.float64 in (dtype, images.dtype)):
        raise ValueError(f"patch_convolution of {images.dtype} gives float32, float16 or bfloat16, not {dtype}")


def _contiguous(images: Tensor, filters: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return images.movedim(1, -1).contiguous(), filters.contiguous(), bias.contiguous()


def _run(images: Tensor, filters: Tensor, bias: Tensor, activation: str, dtype: torch.dtype) -> Tensor:
    check(images, filters, bias, activation, dtype)
    run = kernel("patch_convolution", images) or reference
    return run(*_contiguous(images, filters, bias), ACTIVATIONS.index(activation), dtype).movedim(-1, 1)


def _shape(images: Tensor, filters: Tensor, bias: Tensor, activation: str, dtype: torch.dtype) -> Tensor:
    check(images, filters, bias, activation, dtype)
    count, _, height, width = images.shape
    return images.new_empty((count, height - 1, width - 1, bias.shape[0]), dtype=dtype).movedim(-1, 1)


def _check_backward(dy: Tensor, images: Tensor, filters: Tensor, bias: Tensor, activation: str) -> None:
    check(images, filters, bias, activation, dy.dtype)
    shape = (images.shape[0], bias.shape[0], images.shape[2] - 1, images.shape[3] - 1)
    if dy.shape != shape or dy.device != images.device:
        raise ValueError(
            f"patch_convolution_backward takes dy as y is, {shape} on {images.device}, "
            f"got {tuple(dy.shape)} on {dy.device}"
        )


def _run_backward(dy: Tensor, images: Tensor, filters: Tensor, bias: Tensor, activation: str) -> Tensor:
    _check_backward(dy, images, filters, bias, activation)
    run = kernel("patch_convolution_backward", images) or reference_backward
    rows = dy.movedim(1, -1).contiguous()
    # The kernel reads 16 bytes at a time.
    rows = rows.clone() if rows.data_ptr() % 16 else rows
    return run(rows, *_contiguous(images, filters, bias), ACTIVATIONS.index(activation))


def _shape_backward(dy: Tensor, images: Tensor, filters: Tensor, bias: Tensor, activation: str) -> Tensor:
    _check_backward(dy, images, filters, bias, activation)
    return torch.empty_like(bias, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, filters, bias, ctx.activation, _ = inputs
    ctx.save_for_backward(images, filters, bias)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.needs_input_grad[0] or ctx.needs_input_grad[1]:
        raise RuntimeError("patch_convolution has a gradient of the bias alone: detach images and filters")
    if torch.is_grad_enabled():
        raise RuntimeError("patch_convolution has no second derivative: leave out create_graph")
    to_bias = torch.ops.reread_kernels.patch_convolution_backward(dy, *ctx.saved_tensors, ctx.activation)
    return None, None, to_bias, None, None


define(
    "patch_convolution(Tensor images, Tensor filters, Tensor bias, str activation, ScalarType dtype) -> Tensor",
    _run,
    _shape,
    backward=_backward,
    setup_context=_save,
)
define(
    "patch_convolution_backward(Tensor dy, Tensor images, Tensor filters, Tensor bias, str activation) -> Tensor",
    _run_backward,
    _shape_backward,
)
