"""2D convolution's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches.

The Fourier transform is a peer, with the filter's transform made beforehand: it takes the same time for every filter.
cuDNN is measured in each form that the convolution can have for it: as it is, in channels_last, many images as the
channels of one grouped convolution, and a row's pixels, 16 at a time, as the channels of a convolution with many
channels, whose filters hold the filter at 16 places; that is the best way for a filter of 31.
"""

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from cuda_ext.case import Case, begin, compiled
from cuda_ext.conv2d import KERNELS, PADDINGS, conv2d, reference

LARGE, MANY, SMALL = (1, 8192, 8192), (64, 512, 512), (1, 1024, 1024)
# Pixels of a row that become channels.
BLOCK = 16


def bench_cases() -> Iterator[Case]:
    for size in (3, 5, 7, 9, 11, 15, 31):
        yield _case(LARGE, size, torch.float32)
    for size in (3, 7, 15):
        yield _case(MANY, size, torch.float32)
        yield _case(SMALL, size, torch.float32)
    for size in (3, 9):
        yield _case(MANY, size, torch.bfloat16)
    # The ladder, against its last rung.
    for size in (3, 7, 15):
        for kernel in KERNELS[:-1]:
            yield _case(MANY, size, torch.float32, kernel)


def _case(shape: tuple[int, int, int], size: int, dtype: torch.dtype, kernel: str = "register") -> Case:
    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(shape, device="cuda", dtype=dtype), torch.randn(size, size, device="cuda", dtype=dtype)

    def run(images: Tensor, weight: Tensor) -> Tensor:
        return conv2d(images, weight, kernel=kernel)

    count, height, width = shape
    if kernel == "register" and size < 31:
        peers = {"cuDNN": _in_cudnn(_as_it_is)}
        if size <= 5:
            peers["cuDNN, channels_last"] = _in_cudnn(_channels_last)
        if count > 1:
            peers["cuDNN, images as groups"] = _in_cudnn(_images_as_groups)
    elif kernel == "register":
        # As it is it takes 29 ms, where this takes 21.
        peers = {f"cuDNN, {BLOCK} pixels as channels": _in_cudnn(_pixels_as_channels)}
    else:
        peers = {"register": conv2d}
    if kernel == "register":
        peers["FFT"] = by_fft()
        peers |= {name: _in_cudnn(peer) for name, peer in compiled(_as_it_is).items()}
    pixels = count * height * width
    name = f"{count} x {height} x {width}, {size} x {size}" + ("" if kernel == "register" else f", {kernel}")
    moved = 2 * pixels * dtype.itemsize
    return Case("conv2d", name, dtype, inputs, run, peers, _exact, moved, flops=2 * size**2 * pixels)


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


def by_fft() -> Callable[[Tensor, Tensor], Tensor]:
    """The convolution by Fourier transforms in float32, padded with zeros. A filter is transformed at its first use."""
    spectra: dict[int, tuple[Tensor, Tensor]] = {}

    def run(images: Tensor, weight: Tensor) -> Tensor:
        size = weight.shape[-1]
        sides = [_fast_length(side + size // 2) for side in images.shape[-2:]]
        if id(weight) not in spectra:
            # The taps lie around 0, whose conjugate transform makes the cross-correlation.
            taps = F.pad(weight.float(), (0, sides[1] - size, 0, sides[0] - size)).roll((-(size // 2),) * 2, (0, 1))
            spectra[id(weight)] = torch.fft.rfft2(taps).conj().resolve_conj(), weight
        product = torch.fft.rfft2(images.float(), s=sides).mul_(spectra[id(weight)][0])
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
    cases = [(dtype, size) for dtype in (torch.float32, torch.bfloat16) for size in (3, 5, 15, 31)]
    for number, (dtype, size) in enumerate(cases):
        for turn, shape in enumerate(shapes):
            padding = PADDINGS[(number + turn) % 3]
            begin("conv2d", shape, size, padding, dtype)
            images, weight = torch.randn(shape).to(dtype), torch.randn(size, size).to(dtype)
            expected = reference(images.double(), weight.double(), padding)
            images, weight = (tensor.cuda().requires_grad_() for tensor in (images, weight))
            for kernel in KERNELS:
                result = conv2d(images, weight, padding, kernel)
                if not (result.detach().cpu() - expected).norm() <= 1e-2 * expected.norm():
                    raise AssertionError(f"conv2d is wrong at {shape}, {size}, {dtype}, {padding}, {kernel}")
        torch.autograd.grad(result.sum(), (images, weight))
