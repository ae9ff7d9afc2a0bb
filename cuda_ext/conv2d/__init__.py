"""2D convolution of images of one channel, by a ladder of six kernels that a caller can choose between.

The ladder is that of a blog post ("2D convolution with tiling technique on GPU"), which says of its tiled kernel that
cuDNN is slower for this task. vanilla: a thread an output, filter and image from global memory. constant: the same,
with the filter in constant memory. tiled: the image's tile with its halo, and the filter, in shared memory. register:
the fastest for small filters in float32, in conv2d_register.cuh. matrix: the fastest for them in half precision, in
conv2d_matrix.cuh. fft: the fastest for large ones, Fourier transforms of tiles in shared memory, in conv2d_fft.cuh. The
post's formulas do not survive; as in the field, and in ``torch.conv2d``, what is called a convolution here is a
cross-correlation: the filter is not flipped.
"""

from typing import Any

import torch
import torch.nn.functional as F
import torch.nn.grad
from torch import Tensor

from cuda_ext.library import kernel as compiled
from cuda_ext.operation import define, in_autocast

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SIZES = tuple(range(3, 32, 2))
# In the order of the compiled operation's numbers.
PADDINGS = ("zeros", "reflect", "replicate")
KERNELS = ("vanilla", "constant", "tiled", "register", "matrix", "fft")
# What `matrix` takes, and is the fastest for. On an H200, 64 images of 512 x 512 in bfloat16 take 25 us by matrix and
# 32 by register with a filter of 5, 33 and 72 with 9; 51 and by fft 113 with 15, 76 and 113 with 17.
HALVES = (torch.float16, torch.bfloat16)
SMALLEST_BY_MATRIX, LARGEST_BY_MATRIX = 5, 17
# The smallest filter for which fft, which takes nearly as long for every filter, is the fastest. In float32 on an H200,
# 64 images of 512 x 512 take 0.10 ms by fft and 0.07 by register with a filter of 9, and 0.12 and 0.18 with 15: they
# meet near 11. One of 8192 x 8192 takes 0.28 and 0.36 with 11, and 0.29 and 0.47 with 13.
SMALLEST_BY_FFT = 13
# The compiled operation indexes rows and columns, and the positions outside of them, with 32 bits.
LONGEST_SIDE = 2**30


def conv2d(images: Tensor, weight: Tensor, padding: str = "zeros", kernel: str = "auto") -> Tensor:
    """Return the images, each convolved with one filter: of the images' shape and dtype, contiguous.

    ``result[n, y, x]`` is the sum over i and j of ``weight[i, j] * images[n, y + i - k // 2, x + j - k // 2]``: a
    cross-correlation.

    - ``images``: [N, H, W] or [N, 1, H, W], float64, float32, float16 or bfloat16, any strides (what is not contiguous
      is copied first).
    - ``weight``: [k, k] or [1, 1, k, k] of the same dtype and device, k odd from 3 to 31.
    - ``padding``: the values outside an image, as ``torch.nn.functional.pad`` has it: ``zeros``, ``reflect`` (H and W
      must be larger than k // 2) or ``replicate``.
    - ``kernel``: which one runs on a GPU: ``vanilla``, ``constant``, ``tiled``, ``register``, ``matrix`` (in half
      precision, filters of 5 to 17), ``fft`` or ``auto``, the fastest of the last three for the dtype and the filter;
      in float64 always the reference.

    Arithmetic is in float32, or in float64 for float64. Under autocast images and weight are cast to its dtype, as for
    ``torch.conv2d``.
    The kernel ``fft`` has the error of its tiles: it is relative to the largest pixels of up to 128 x 256 around, which
    NaN and infinity spread over.
    The kernel ``constant`` shares one piece of constant memory between the streams of a GPU, so that calls on different
    streams run one after another; a CUDA graph cannot capture it (RuntimeError).
    Raises ValueError, naming what came, for anything else.

    >>> conv2d(torch.eye(4).unsqueeze(0), torch.ones(3, 3))
    tensor([[[2., 2., 1., 0.],
             [2., 3., 2., 1.],
             [1., 2., 3., 2.],
             [0., 1., 2., 2.]]])
    """
    return torch.ops.reread_kernels.conv2d(images, weight, padding, kernel)


def reference(images: Tensor, weight: Tensor, padding: str) -> Tensor:
    """Equals ``F.conv2d(F.pad(images, 4 * [k // 2], mode=padding), weight)`` of images and a filter of one channel."""
    if images.numel() == 0:
        return torch.empty_like(images, memory_format=torch.contiguous_format)
    padded = _padded(_pictures(images)[:, None], weight.shape[-1] // 2, padding)
    return F.conv2d(padded, weight.reshape(1, 1, *weight.shape[-2:])).reshape(images.shape).contiguous()


def filter_gradient_reference(images: Tensor, gradient: Tensor, size: int, padding: str) -> Tensor:
    """Equals what autograd gives for the filter of ``reference`` when ``gradient`` comes back, as [size, size]."""
    if images.numel() == 0:
        return images.new_zeros(size, size)
    padded = _padded(_pictures(images)[:, None], size // 2, padding)
    return torch.nn.grad.conv2d_weight(padded, (1, 1, size, size), _pictures(gradient)[:, None]).reshape(size, size)


def _padded(images: Tensor, margin: int, padding: str) -> Tensor:
    return F.pad(images, (margin,) * 4, mode="constant" if padding == "zeros" else padding)


def _pictures(images: Tensor) -> Tensor:
    """[N, H, W], without the channel if there is one."""
    return images.reshape(images.shape[0], *images.shape[-2:])


def check(images: Tensor, weight: Tensor, padding: str, kernel: str) -> None:
    """Refuse what the kernels do not take."""
    if images.device != weight.device:
        raise ValueError(f"conv2d takes images and weight on one device, got {images.device} and {weight.device}")
    _check_dtypes(images, weight, "weight")
    if kernel not in ("auto", *KERNELS):
        raise ValueError(f"conv2d's kernel is auto, {', '.join(KERNELS)}, got {kernel!r}")
    if kernel in ("register", "fft") and images.dtype == torch.float64:
        raise ValueError(f"conv2d's kernel '{kernel}' takes no float64: choose 'auto', the reference")
    shape = tuple(weight.shape)
    if kernel == "matrix" and not by_matrix(images.dtype, shape[-1]):
        raise ValueError(
            f"conv2d's kernel 'matrix' takes float16 and bfloat16 and filters of {SMALLEST_BY_MATRIX} to "
            f"{LARGEST_BY_MATRIX}, got {images.dtype} and {shape}"
        )
    if len(shape) not in (2, 4) or shape[-1] != shape[-2] or shape[-1] not in SIZES or shape[:-2] not in ((), (1, 1)):
        raise ValueError(f"conv2d takes weight as [k, k] or [1, 1, k, k], k odd from 3 to 31, got {shape}")
    _check_images(images, shape[-1], padding)


def by_matrix(dtype: torch.dtype, size: int) -> bool:
    """Whether the kernel ``matrix`` takes it."""
    return dtype in HALVES and SMALLEST_BY_MATRIX <= size <= LARGEST_BY_MATRIX


def _check_dtypes(images: Tensor, other: Tensor, name: str) -> None:
    if images.dtype != other.dtype or images.dtype not in DTYPES:
        known = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
        raise ValueError(
            f"conv2d takes images and {name} of one dtype of {known}, got {images.dtype} and {other.dtype}"
        )
    if images.layout != torch.strided or other.layout != torch.strided:
        raise ValueError(f"conv2d takes strided tensors, got layouts {images.layout} and {other.layout}")


def _check_images(images: Tensor, size: int, padding: str) -> None:
    if padding not in PADDINGS:
        raise ValueError(f"conv2d's padding is {', '.join(PADDINGS)}, got {padding!r}")
    shape = tuple(images.shape)
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[1] != 1):
        raise ValueError(f"conv2d takes images as [N, H, W] or [N, 1, H, W], got {shape}")
    if max(shape[-2:]) > LONGEST_SIDE:
        raise ValueError(f"conv2d takes images of at most 2^30 rows and columns, got {shape}")
    if padding == "reflect" and min(shape[-2:]) <= size // 2:
        raise ValueError(
            f"conv2d with padding 'reflect' and a filter of {size} takes images of more than {size // 2} rows and "
            f"columns, got {shape}"
        )


def _check_gradient(images: Tensor, gradient: Tensor, size: int, padding: str) -> None:
    if images.device != gradient.device or images.shape != gradient.shape:
        raise ValueError(
            f"conv2d's filter gradient takes images and gradient of one shape on one device, got "
            f"{tuple(images.shape)} on {images.device} and {tuple(gradient.shape)} on {gradient.device}"
        )
    _check_dtypes(images, gradient, "gradient")
    if size not in SIZES:
        raise ValueError(f"conv2d's filter gradient takes a size that is odd from 3 to 31, got {size}")
    _check_images(images, size, padding)


def fastest(dtype: torch.dtype, size: int) -> str:
    """The kernel that ``auto`` means on a GPU."""
    if by_matrix(dtype, size):
        return "matrix"
    return "fft" if size >= SMALLEST_BY_FFT else "register"


def _run(images: Tensor, weight: Tensor, padding: str, kernel: str) -> Tensor:
    check(images, weight, padding, kernel)
    run = compiled("conv2d", images)
    if run is None:
        return reference(images, weight, padding)
    if kernel == "auto":
        kernel = fastest(images.dtype, weight.shape[-1])
    pictures, taps = _pictures(images), weight.reshape(weight.shape[-2:])
    return run(pictures, taps, PADDINGS.index(padding), KERNELS.index(kernel)).view(images.shape)


def _shape(images: Tensor, weight: Tensor, padding: str, kernel: str) -> Tensor:
    check(images, weight, padding, kernel)
    return torch.empty_like(images, memory_format=torch.contiguous_format)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, weight, ctx.padding, _ = inputs
    ctx.save_for_backward(images, weight)


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    images, weight = ctx.saved_tensors
    to_images = _images_gradient(gradient, weight, ctx.padding) if ctx.needs_input_grad[0] else None
    to_weight = None
    if ctx.needs_input_grad[1]:
        to_weight = torch.ops.reread_kernels.conv2d_filter_gradient(images, gradient, weight.shape[-1], ctx.padding)
        to_weight = to_weight.reshape(weight.shape)
    return to_images, to_weight, None, None


def _images_gradient(gradient: Tensor, weight: Tensor, padding: str) -> Tensor:
    """The convolution with the flipped filter; what it gives outside the image goes where the padding came from."""
    flipped = weight.flip(-1, -2)
    if padding == "zeros":
        return torch.ops.reread_kernels.conv2d(gradient, flipped, "zeros", "auto")
    margin = weight.shape[-1] // 2
    wide = torch.ops.reread_kernels.conv2d(F.pad(gradient, (margin,) * 4), flipped, "zeros", "auto")
    return _fold(_fold(wide, -1, margin, padding), -2, margin, padding)


def _fold(wide: Tensor, dim: int, margin: int, padding: str) -> Tensor:
    """The gradient of padding by ``margin`` along ``dim``: PyTorch's own is not deterministic on a GPU."""
    size = wide.shape[dim] - 2 * margin
    inside = wide.narrow(dim, margin, size).clone()
    before, after = wide.narrow(dim, 0, margin), wide.narrow(dim, margin + size, margin)
    if padding == "reflect":
        inside.narrow(dim, 1, margin).add_(before.flip(dim))
        inside.narrow(dim, size - 1 - margin, margin).add_(after.flip(dim))
    elif size > 0:
        inside.narrow(dim, 0, 1).add_(before.sum(dim, keepdim=True))
        inside.narrow(dim, size - 1, 1).add_(after.sum(dim, keepdim=True))
    return inside


def _run_filter_gradient(images: Tensor, gradient: Tensor, size: int, padding: str) -> Tensor:
    _check_gradient(images, gradient, size, padding)
    run = compiled("conv2d_filter_gradient", images)
    if run is None:
        return filter_gradient_reference(images, gradient, size, padding)
    return run(_pictures(images), _pictures(gradient), size, PADDINGS.index(padding))


def _filter_gradient_shape(images: Tensor, gradient: Tensor, size: int, padding: str) -> Tensor:
    _check_gradient(images, gradient, size, padding)
    return images.new_empty(size, size)


def _save_filter_gradient(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    images, gradient, _, ctx.padding = inputs
    ctx.save_for_backward(images, gradient)


def _filter_gradient_backward(ctx: Any, change: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
    """It is linear in the images and in the gradient, as the convolution is in the images and the filter."""
    images, gradient = ctx.saved_tensors
    to_images = _images_gradient(gradient, change, ctx.padding) if ctx.needs_input_grad[0] else None
    to_gradient = None
    if ctx.needs_input_grad[1]:
        to_gradient = torch.ops.reread_kernels.conv2d(images, change, ctx.padding, "auto")
    return to_images, to_gradient, None, None


def _cast(device: str, images: Tensor, weight: Tensor, padding: str, kernel: str) -> Tensor:
    """Autocast: to its dtype, as for PyTorch's own convolutions; float64 stays."""
    return torch.ops.reread_kernels.conv2d(*in_autocast(device, images, weight), padding, kernel)


define(
    "conv2d(Tensor images, Tensor weight, str padding, str kernel) -> Tensor",
    _run,
    _shape,
    backward=_backward,
    setup_context=_save,
    autocast=_cast,
)
define(
    "conv2d_filter_gradient(Tensor images, Tensor gradient, int size, str padding) -> Tensor",
    _run_filter_gradient,
    _filter_gradient_shape,
    backward=_filter_gradient_backward,
    setup_context=_save_filter_gradient,
)
