"""Maximum pooling of windows of 2 x 2, with a gradient that has the same bits in every run.

On a GPU, PyTorch's own keeps a 64-bit number per maximum, and its gradient adds up by atomics, in no fixed order.
Windows that do not overlap need neither: the kernels in max_pool2d.cu keep a byte per maximum and write each number
once.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def max_pool2d(x: Tensor) -> Tensor:
    """Return the maximum of each window of 2 x 2, as ``F.max_pool2d(x, 2)`` gives it, with channels last in memory.

    - ``x``: [N, C, H, W] of float64, float32, float16 or bfloat16; what is not channels-last is copied first.

    The result is [N, C, H // 2, W // 2]: a last odd row or column belongs to no window. The gradient goes to the first
    of equal maxima, and a NaN is larger than any number. Autocast changes nothing.
    Raises ValueError, naming what came, for anything else.

    >>> x = torch.tensor([[1.0, 4.0, 3.0], [2.0, 0.0, 8.0]], requires_grad=True)
    >>> y = max_pool2d(x[None, None])
    >>> y.detach()
    tensor([[[[4.]]]])
    >>> y.sum().backward()
    >>> x.grad
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    """
    y, _ = torch.ops.reread_kernels.max_pool2d(x)
    return y


# What the kernels compute, in PyTorch: images are [N, H, W, C], contiguous.


def reference(images: Tensor) -> tuple[Tensor, Tensor]:
    """Equals ``F.max_pool2d(..., 2)``, with the number of each maximum in its window: 0 1 above, 2 3 below."""
    if 0 in _pooled(images):
        y = images.new_empty(_pooled(images))
        return y, torch.empty_like(y, dtype=torch.uint8)
    width = images.shape[2]
    y, flat = functional.max_pool2d(images.movedim(-1, 1), 2, return_indices=True)
    which = (flat // width % 2 * 2 + flat % width % 2).to(torch.uint8)
    return y.movedim(1, -1).contiguous(), which.movedim(1, -1).contiguous()


def reference_backward(gradient: Tensor, which: Tensor, height: int, width: int) -> Tensor:
    """Equals autograd's gradient of the images: each maximum's at its place, and zeros."""
    windows = gradient.new_zeros(*gradient.shape, 4).scatter_(-1, which.long().unsqueeze(-1), gradient.unsqueeze(-1))
    spread = windows.unflatten(-1, (2, 2)).permute(0, 1, 4, 2, 5, 3).flatten(3, 4).flatten(1, 2)
    return functional.pad(spread, (0, 0, 0, width % 2, 0, height % 2))


def chosen(images: Tensor, which: Tensor) -> Tensor:
    """images [N, H, W, C] -> [N, H // 2, W // 2, C]: of each window the number that ``which`` says."""
    _, rows, columns, _ = which.shape
    windows = images[:, : 2 * rows, : 2 * columns].unflatten(2, (columns, 2)).unflatten(1, (rows, 2))
    return windows.permute(0, 1, 3, 5, 2, 4).flatten(-2).gather(-1, which.long().unsqueeze(-1)).squeeze(-1)


def check(x: Tensor) -> None:
    """Refuse what the kernel does not take."""
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"max_pool2d takes x of {known}, got {x.dtype}")
    if x.layout != torch.strided:
        raise ValueError(f"max_pool2d takes a strided tensor, got layout {x.layout}")
    if x.ndim != 4:
        raise ValueError(f"max_pool2d takes images [N, C, H, W], got {tuple(x.shape)}")


def check_backward(gradient: Tensor, index: Tensor, height: int, width: int) -> None:
    check(gradient)
    if gradient.shape != index.shape or index.dtype != torch.uint8 or index.device != gradient.device:
        raise ValueError(
            f"max_pool2d_backward takes an index of uint8 as the gradient, {tuple(gradient.shape)} on "
            f"{gradient.device}, got {tuple(index.shape)} of {index.dtype} on {index.device}"
        )
    if gradient.shape[2:] != (height // 2, width // 2):
        raise ValueError(
            f"max_pool2d_backward takes a gradient of {height // 2} x {width // 2} windows for {height} x {width} "
            f"pixels, got {tuple(gradient.shape)}"
        )


def _pooled(images: Tensor) -> tuple[int, int, int, int]:
    count, height, width, channels = images.shape
    return count, height // 2, width // 2, channels


def _channels_last(x: Tensor) -> Tensor:
    """x [N, C, H, W] as [N, H, W, C], contiguous: a view where the channels are last in memory, else a copy."""
    return x.movedim(1, -1).contiguous()


def _run(x: Tensor) -> tuple[Tensor, Tensor]:
    check(x)
    y, index = (kernel("max_pool2d", x) or reference)(_channels_last(x))
    return y.movedim(-1, 1), index.movedim(-1, 1)


def _shape(x: Tensor) -> tuple[Tensor, Tensor]:
    check(x)
    y = x.new_empty(_pooled(x.movedim(1, -1)))
    return y.movedim(-1, 1), torch.empty_like(y, dtype=torch.uint8).movedim(-1, 1)


def _run_backward(gradient: Tensor, index: Tensor, height: int, width: int) -> Tensor:
    check_backward(gradient, index, height, width)
    run = kernel("max_pool2d_backward", gradient) or reference_backward
    return run(_channels_last(gradient), _channels_last(index), height, width).movedim(-1, 1)


def _shape_backward(gradient: Tensor, index: Tensor, height: int, width: int) -> Tensor:
    check_backward(gradient, index, height, width)
    count, channels = gradient.shape[:2]
    return gradient.new_empty(count, height, width, channels).movedim(-1, 1)


def _save(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[1])
    ctx.height, ctx.width = inputs[0].shape[2:]
    # Else the index gets a gradient of zeros, which nothing reads.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, _: None) -> Tensor | None:
    if gradient is None:
        return None
    (index,) = ctx.saved_tensors
    return torch.ops.reread_kernels.max_pool2d_backward(gradient, index, ctx.height, ctx.width)


def _save_index(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _backward_twice(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
    """The backward pass is linear: its gradient takes from each window the number that the pass wrote."""
    (index,) = ctx.saved_tensors
    return chosen(gradient.movedim(1, -1), index.movedim(1, -1)).movedim(-1, 1), None, None, None


define("max_pool2d(Tensor x) -> (Tensor, Tensor)", _run, _shape, backward=_backward, setup_context=_save)
define(
    "max_pool2d_backward(Tensor gradient, Tensor index, SymInt height, SymInt width) -> Tensor",
    _run_backward,
    _shape_backward,
    backward=_backward_twice,
    setup_context=_save_index,
)
