"""The patch convolution's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.batch_norm_activation import ACTIVATIONS
from cuda_ext.case import Case, Run, backward_of, begin, compiled
from cuda_ext.patch_convolution import DTYPES, patch_convolution

# CIFAR-10's images, in the batch of fastnet's record (models/fastnet.py).
SHAPE = (2000, 3, 32, 32)
FUNCTIONS = {"none": lambda z: z, "relu": torch.relu, "swish": functional.silu, "gelu": functional.gelu}


def bench_cases() -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32):
        for backward in (False, True):
            yield _case(SHAPE, dtype, backward)


def _case(shape: tuple[int, int, int, int], dtype: torch.dtype, backward: bool) -> Case:
    count, channels, height, width = shape
    outputs = 8 * channels
    results = count * outputs * (height - 1) * (width - 1)

    def inputs() -> tuple[Tensor, ...]:
        images, filters, bias = given(shape)
        if not backward:
            return images, filters, bias
        above = torch.randn((count, outputs, height - 1, width - 1), device="cuda", dtype=dtype)
        return images, filters, bias.requires_grad_(), above.contiguous(memory_format=torch.channels_last)

    def plain(images: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
        exact = images.dtype == torch.float64
        return functional.gelu(functional.conv2d(images, filters, bias)).to(images.dtype if exact else dtype)

    def own(images: Tensor, filters: Tensor, bias: Tensor) -> Tensor:
        return patch_convolution(images, filters, bias, "gelu", dtype)

    way: Callable[[Run], Run] = backward_of if backward else lambda function: function
    peers: dict[str, Run] = {name: way(peer) for name, peer in {"PyTorch": plain, **compiled(plain)}.items()}
    moved = count * channels * height * width * torch.float32.itemsize + results * dtype.itemsize
    products = 2 * results * 4 * channels
    name = "patch_convolution backward" if backward else "patch_convolution"
    described = " x ".join(map(str, shape)) + ", gelu"
    return Case(name, described, dtype, inputs, way(own), peers, way(plain), moved, products)


def given(shape: tuple[int, int, int, int], device: str = "cuda") -> tuple[Tensor, Tensor, Tensor]:
    """Random images, channels-last, filters and a bias, float32."""
    channels = shape[1]
    images = torch.randn(shape, device=device).contiguous(memory_format=torch.channels_last)
    return images, torch.randn(8 * channels, channels, 2, 2, device=device), torch.randn(8 * channels, device=device)


def exercise() -> None:
    """Run the kernels on shapes and activations that reach every branch, and compare with float64."""
    limits = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
    for dtype in DTYPES[1:]:
        begin("patch_convolution", dtype)
        for shape in ((0, 3, 4, 4), (1, 3, 2, 2), (2, 1, 5, 7), (3, 3, 19, 23)):
            images, filters, bias = given(shape)
            for activation in ACTIVATIONS:
                y = patch_convolution(images, filters, bias.requires_grad_(), activation, dtype)
                above = torch.randn_like(y)
                (gradient,) = torch.autograd.grad(y, bias, above)
                # On the CPU: what the sanitizer watches is then little but the kernels.
                images_there, filters_there, wide = (
                    tensor.detach().cpu().double() for tensor in (images, filters, bias)
                )
                exact = FUNCTIONS[activation](functional.conv2d(images_there, filters_there, wide.requires_grad_()))
                (exact_gradient,) = torch.autograd.grad(exact, wide, above.cpu().double())
                for a, b in ((y, exact), (gradient, exact_gradient)):
                    if not (a.cpu().double() - b).norm() <= limits[dtype] * (b.norm() + 1):
                        raise AssertionError(f"patch_convolution is wrong on {shape} of {dtype}, {activation}")
