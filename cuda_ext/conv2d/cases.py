"""2D convolution's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches.

The Fourier transform of whole images is a peer, with the filter's transform made beforehand, and with it in the time:
it takes the same time for every filter.
cuDNN is measured in each form that the convolution can have for it: as it is, in channels_last, many images as the
channels of one grouped convolution, and a row's pixels, 16 at a time, as the channels of a convolution with many
channels, whose filters hold the filter at 16 places; that is the best way for a filter of 31.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_ext.case import CUDNN_ALONE, Case, Run, begin, compiled
from cuda_ext.conv2d import KERNELS, PADDINGS, by_matrix, conv2d, reference

LARGE, MANY, SMALL = (1, 8192, 8192), (64, 512, 512), (1, 1024, 1024)
# Pixels of a row that become channels.
BLOCK = 16
# Sides of the tiles whose transforms take the fewest operations that a convolution is known to take.
TILES = (64, 128)


def bench_cases() -> Iterator[Case]:
    for size in (3, 5, 7, 9, 11, 15, 19, 23, 27, 31):
        yield _case(LARGE, size, torch.float32)
    for size in (3, 7, 15):
        yield _case(MANY, size, torch.float32)
        yield _case(SMALL, size, torch.float32)
    yield _case(MANY, 31, torch.float32)
    for size in (3, 9):
        yield _case(MANY, size, torch.bfloat16)
    # The first rungs of the ladder, against `register` and cuDNN.
    for size in (3, 7, 15):
        for kernel in KERNELS[:3]:
            yield _case(MANY, size, torch.float32, kernel)


def _case(shape: tuple[int, int, int], size: int, dtype: torch.dtype, kernel: str = "auto") -> Case:
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(shape, device="cuda", dtype=dtype), torch.randn(size, size, device="cuda", dtype=dtype)

    count, height, width = shape
    peers: dict[str, Run]
    if kernel != "auto":
        peers = {"register": partial(conv2d, kernel="register")}
        peers |= {"cuDNN": _in_cudnn(_as_it_is), "cuDNN, images as groups": _in_cudnn(_images_as_groups)}
    else:
        # For a filter of 31 it takes 29 ms as it is, and 21 so.
        peers = {f"cuDNN, {BLOCK} pixels as channels": _in_cudnn(_pixels_as_channels)} if size > 15 else {}
        if size < 31:
            peers["cuDNN"] = _in_cudnn(_as_it_is)
        if size <= 5:
            peers["cuDNN, channels_last"] = _in_cudnn(_channels_last)
        if count > 1:
            peers["cuDNN, images as groups"] = _in_cudnn(_images_as_groups)
        peers |= {"FFT": by_fft(), "FFT, filter included": by_fft(kept=False)}
        peers |= {name: _in_cudnn(peer) for name, peer in compiled(_as_it_is, CUDNN_ALONE).items()}
    pixels = count * height * width
    name = f"{count} x {height} x {width}, {size} x {size}" + ("" if kernel == "auto" else f", {kernel}")
    moved = 2 * pixels * dtype.itemsize
    return Case(
        "conv2d",
        name,
        dtype,
        inputs,
        partial(conv2d, kernel=kernel),
        peers,
        _exact,
        moved,
        flops=_operations(size) * pixels,
    )


def _operations(size: int) -> float:
    """The fewest of a pixel: the products and sums of the definition, or those of transforms of tiles.

    A transform of n complex numbers takes 5 n log2(n); two tiles of pixels are one of complex numbers.
    """

    def by_tiles(side: int) -> float:
        numbers = side**2
        return (2 * 5 * numbers * math.log2(numbers) + 6 * numbers) / (2 * (side - size + 1) ** 2)

    return min(2 * size**2, *(by_tiles(side) for side in TILES))


def _in_cudnn(convolve: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """With cuDNN's fastest algorithm, which it finds on the first call, in the arithmetic of the dtype."""

    def run(images: Tensor, weight: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            return convolve(images, weight)

    return run


def _as_it_is(images: Tensor, weight: Tensor) -> Tensor:
    return F.conv2d(images[:, None], weight[None, None], padding=weight.shape[-1] // 2)[:, 0]


def _channels_last(images: Tensor, weight: Tensor) -> Tensor:
    """With one channel the layouts hold the same numbers in the same places: the strides alone name the layout."""
    result = F.conv2d(_named_channels_last(images), _named_channels_last(weight[None]), padding=weight.shape[-1] // 2)
    return result[:, 0]


def _named_channels_last(images: Tensor) -> Tensor:
    count, height, width = images.shape
    return images.as_strided((count, 1, height, width), (height * width, 1, width, 1))


def _images_as_groups(images: Tensor, weight: Tensor) -> Tensor:
    count, size = images.shape[0], weight.shape[-1]
    return F.conv2d(images[None], weight.expand(count, 1, size, size), padding=size // 2, groups=count)[0]


def _pixels_as_channels(images: Tensor, weight: Tensor) -> Tensor:
    count, height, width = images.shape
    size = weight.shape[-1]
    blocks = -(-(size // 2) // BLOCK)
    # wide[o, i, y, b]: what pixel i of the block b - blocks away adds to pixel o: the filter's column there.
    place = torch.arange(BLOCK, device=weight.device)
    away = torch.arange(-blocks, blocks + 1, device=weight.device) * BLOCK
    column = away + place[None, :, None] - place[:, None, None] + size // 2
    inside = (column >= 0) & (column < size)
    wide = torch.where(inside[:, :, None], weight.t()[column.clamp(0, size - 1)].transpose(2, 3), 0)
    wide = wide.contiguous(memory_format=torch.channels_last)
    channels = images.view(count, height, width // BLOCK, BLOCK).permute(0, 3, 1, 2)
    result = F.conv2d(channels, wide, padding=(size // 2, blocks))
    return result.permute(0, 2, 3, 1).reshape(images.shape)


def by_fft(kept: bool = True) -> Callable[[Tensor, Tensor], Tensor]:
    """The convolution by Fourier transforms in float32, padded with zeros.

    kept: a filter is transformed at its first use; otherwise each time.
    """
    spectra: dict[int, tuple[Tensor, Tensor]] = {}

    def spectrum(weight: Tensor, sides: list[int]) -> Tensor:
        """The taps lie around 0, whose conjugate transform makes the cross-correlation."""
        size = weight.shape[-1]
        taps = F.pad(weight.float(), (0, sides[1] - size, 0, sides[0] - size)).roll((-(size // 2),) * 2, (0, 1))
        return torch.fft.rfft2(taps).conj().resolve_conj()

    def run(images: Tensor, weight: Tensor) -> Tensor:
        sides = [_fast_length(side + weight.shape[-1] // 2) for side in images.shape[-2:]]
        if kept and id(weight) not in spectra:
            spectra[id(weight)] = spectrum(weight, sides), weight
        by = spectra[id(weight)][0] if kept else spectrum(weight, sides)
        product = torch.fft.rfft2(images.float(), s=sides).mul_(by)
        return torch.fft.irfft2(product, s=sides)[:, : images.shape[-2], : images.shape[-1]].to(images.dtype)

    return run


def _fast_length(side: int) -> int:
    """The next even length without a prime factor above 7."""
    length = side + side % 2
    while True:
        rest = length
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 2


def _exact(images: Tensor, weight: Tensor) -> Tensor:
    """The sum of the definition, one tap at a time: the memory that cuDNN takes for this in float64 is not there."""
    size = weight.shape[-1]
    height, width = images.shape[-2:]
    padded = F.pad(images, (size // 2,) * 4)
    result = torch.zeros_like(images)
    for i in range(size):
        for j in range(size):
            result.addcmul_(padded[:, i : i + height, j : j + width], weight[i, j])
    return result


def exercise() -> None:
    """Run the kernels at sizes, shapes and alignments that reach every branch, and compare with the CPU's float64."""
    # Whole packs and more than a strip; rows that begin between packs.
    shapes = [(1, 19, 264), (2, 17, 45)]
    for dtype in (torch.float32, torch.bfloat16):
        # Small tiles and large ones: pairs that are inside the image, and an odd number of tiles. Large tiles take a
        # pair for each multiprocessor.
        _compare((1, 210, 440), 31, dtype, "zeros", ("fft",))
        _compare((1, 230, 450), 19, dtype, "zeros", ("fft",), copies=24)
    cases = [(dtype, size) for dtype in (torch.float32, torch.bfloat16) for size in (3, 5, 15, 31)]
    for number, (dtype, size) in enumerate(cases):
        for turn, shape in enumerate(shapes):
            kernels = tuple(kernel for kernel in KERNELS if kernel != "matrix" or by_matrix(dtype, size))
            result, inputs = _compare(shape, size, dtype, PADDINGS[(number + turn) % 3], kernels)
        torch.autograd.grad(result.sum(), inputs)


def _compare(
    shape: tuple[int, ...], size: int, dtype: torch.dtype, padding: str, kernels: tuple[str, ...], copies: int = 1
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run each kernel on copies of the images and compare it with the CPU's float64.

    Returns the last kernel's result, and the inputs.
    """
    begin("conv2d", shape, size, padding, dtype, copies)
    images, weight = torch.randn(shape).to(dtype), torch.randn(size, size).to(dtype)
    expected = reference(images.double(), weight.double(), padding).repeat(copies, 1, 1)
    images, weight = (tensor.cuda().requires_grad_() for tensor in (images.repeat(copies, 1, 1), weight))
    for kernel in kernels:
        result = conv2d(images, weight, padding, kernel)
        if not (result.detach().cpu() - expected).norm() <= 1e-2 * expected.norm():
            raise AssertionError(f"conv2d is wrong at {shape}, {size}, {dtype}, {padding}, {kernel}")
    return result, (images, weight)
