"""Maximum pooling of windows of 2 x 2 or 3 x 3, with a gradient that has the same bits in every run.

On a GPU, PyTorch's own keeps a 64-bit number per maximum, and its gradient adds up by atomics, in no fixed order.
The kernels in max_pool2d.cu need neither: they keep a byte per maximum, add up in a fixed order and write each number
once.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
WINDOWS = (2, 3)


def max_pool2d(x: Tensor, window: int = 2) -> Tensor:
    """Return the maximum of each window of 2 x 2 or 3 x 3, every second row and column, with channels last in memory.

    - ``x``: [N, C, H, W] of float64, float32, float16 or bfloat16; what is not channels-last is copied first.
    - ``window``: 2 equals ``F.max_pool2d(x, 2)``, whose result is [N, C, H // 2, W // 2]: a last odd row or column
      belongs to no window. 3 equals ``F.max_pool2d(x, 3, stride=2, padding=1)``, whose result is
      [N, C, (H + 1) // 2, (W + 1) // 2]: padding is never a maximum.

    The gradient goes to the first of equal maxima, and a NaN is larger than any number. Of windows that overlap it is
    the sum, of half precision in float32 and rounded once. Autocast changes nothing.
    Raises ValueError, naming what came, for anything else.

    >>> x = torch.tensor([[1.0, 4.0, 3.0], [2.0, 0.0, 8.0]], requires_grad=True)
    >>> y = max_pool2d(x[None, None])
    >>> y.detach()
    tensor([[[[4.]]]])
    >>> y.sum().backward()
    >>> x.grad
    tensor([[0., 1., 0.],
            [0., 0., 0.]])
    >>> max_pool2d(x.detach()[None, None], window=3)
    tensor([[[[4., 8.]]]])
    """
    y, _ = torch.ops.reread_kernels.max_pool2d(x, window)
    return y


# What the kernels compute, in PyTorch: images are [N, H, W, C], contiguous. A window's numbers are counted by rows.


def reference(images: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Equals ``F.max_pool2d``, with the number of each maximum in its window."""
    if 0 in _pooled(images, window):
        y = images.new_empty(_pooled(images, window))
        return y, torch.empty_like(y, dtype=torch.uint8)
    y, flat = functional.max_pool2d(images.movedim(-1, 1), window, 2, window - 2, return_indices=True)
    y, flat = y.movedim(1, -1).contiguous(), flat.movedim(1, -1).contiguous()
    rows, columns = _corners(flat, window)
    width = images.shape[2]
    return y, ((flat // width - rows) * window + flat % width - columns).to(torch.uint8)


def reference_backward(gradient: Tensor, which: Tensor, height: int, width: int, window: int) -> Tensor:
    """Equals autograd's gradient of the images: each maximum's at its place, those of one place added up, and zeros.

    The order is that of the windows, as the kernel has it.
    """
    count, rows, columns, channels = gradient.shape
    padding = window - 2
    wide = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
    padded = wide.new_zeros(count, height + 2 * padding, width + 2 * padding, channels)
    for place in reversed(range(window**2)):
        row, column = divmod(place, window)
        padded[:, row : row + 2 * rows : 2, column : column + 2 * columns : 2] += wide.where(which == place, 0)
    inner = padded[:, padding : padding + height, padding : padding + width]
    return inner.to(gradient.dtype, copy=True, memory_format=torch.contiguous_format)


def chosen(images: Tensor, which: Tensor, window: int) -> Tensor:
    """images [N, H, W, C] -> the shape of ``which``: of each window the number that ``which`` says."""
    rows, columns = _corners(which, window)
    flat = (rows + which.long() // window) * images.shape[2] + columns + which % window
    return images.flatten(1, 2).gather(1, flat.flatten(1, 2)).unflatten(1, which.shape[1:3])


def _corners(which: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """which [N, H', W', C] -> where its windows begin: rows of the image [H', 1, 1], columns [W', 1]."""
    rows, columns = (2 * torch.arange(size, device=which.device) - (window - 2) for size in which.shape[1:3])
    return rows[:, None, None], columns[:, None]


def check(x: Tensor, window: int) -> None:
    """Refuse what the kernel does not take."""
    if window not in WINDOWS:
        raise ValueError(f"max_pool2d takes a window of 2 or 3, got {window}")
    if x.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(f"max_pool2d takes x of {known}, got {x.dtype}")
    if x.layout != torch.strided:
        raise ValueError(f"max_pool2d takes a strided tensor, got layout {x.layout}")
    if x.ndim != 4:
        raise ValueError(f"max_pool2d takes images [N, C, H, W], got {tuple(x.shape)}")


def check_backward(gradient: Tensor, index: Tensor, height: int, width: int, window: int) -> None:
    check(gradient, window)
    if gradient.shape != index.shape or index.dtype != torch.uint8 or index.device != gradient.device:
        raise ValueError(
            f"max_pool2d_backward takes an index of uint8 as the gradient, {tuple(gradient.shape)} on "
            f"{gradient.device}, got {tuple(index.shape)} of {index.dtype} on {index.device}"
        )
    rows, columns = windows(height, window), windows(width, window)
    if gradient.shape[2:] != (rows, columns):
        raise ValueError(
            f"max_pool2d_backward takes a gradient of {rows} x {columns} windows for {height} x {width} "
            f"pixels, got {tuple(gradient.shape)}"
        )


def windows(size: int, window: int) -> int:
    """Return how many windows begin along a side of ``size`` pixels."""
    return (size + window) // 2 - 1


def _pooled(images: Tensor, window: int) -> tuple[int, int, int, int]:
    count, height, width, channels = images.shape
    return count, windows(height, window), windows(width, window), channels


def _channels_last(x: Tensor) -> Tensor:
    """x [N, C, H, W] as [N, H, W, C], contiguous: a view where the channels are last in memory, else a copy."""
    return x.movedim(1, -1).contiguous()


def _run(x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    check(x, window)
    y, index = (kernel("max_pool2d", x) or reference)(_channels_last(x), window)
    return y.movedim(-1, 1), index.movedim(-1, 1)


def _shape(x: Tensor, window: int) -> tuple[Tensor, Tensor]:
    check(x, window)
    y = x.new_empty(_pooled(x.movedim(1, -1), window))
    return y.movedim(-1, 1), torch.empty_like(y, dtype=torch.uint8).movedim(-1, 1)


def _run_backward(gradient: Tensor, index: Tensor, height: int, width: int, window: int) -> Tensor:
    check_backward(gradient, index, height, width, window)
    run = kernel("max_pool2d_backward", gradient) or reference_backward
    return run(_channels_last(gradient), _channels_last(index), height, width, window).movedim(-1, 1)


def _shape_backward(gradient: Tensor, index: Tensor, height: int, width: int, window: int) -> Tensor:
    check_backward(gradient, index, height, width, window)
    count, channels = gradient.shape[:2]
    return gradient.new_empty(count, height, width, channels).movedim(-1, 1)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, ctx.window = inputs
    ctx.save_for_backward(output[1])
    ctx.height, ctx.width = x.shape[2:]
    # Else the index gets a gradient of zeros, which nothing reads.
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, None]:
    if gradient is None:
        return None, None
    (index,) = ctx.saved_tensors
    backward = torch.ops.reread_kernels.max_pool2d_backward
    return backward(gradient, index, ctx.height, ctx.width, ctx.window), None


def _save_index(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.window = inputs[4]


def _backward_twice(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
    """The backward pass is linear: its gradient takes from each window the number that the pass wrote."""
    (index,) = ctx.saved_tensors
    given = chosen(gradient.movedim(1, -1), index.movedim(1, -1), ctx.window)
    return given.movedim(-1, 1), None, None, None, None


define("max_pool2d(Tensor x, int window) -> (Tensor, Tensor)", _run, _shape, backward=_backward, setup_context=_save)
define(
    "max_pool2d_backward(Tensor gradient, Tensor index, SymInt height, SymInt width, int window) -> Tensor",
    _run_backward,
    _shape_backward,
    backward=_backward_twice,
    setup_context=_save_index,
)
