"""Cases of the dense block: those that the benchmark times, and small odd ones for compute-sanitizer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.batch_norm_activation.cases import compare, refuse_difference
from cuda_ext.case import Case, begin, compiled, forward_and_backward_of
from cuda_ext.dense_block import Halves, dense_block, products_fit

# Rows, outputs and channels that reach every kernel of the 1x1 convolution, and those of warpgroups.
PRODUCTS = (300, 48, 36), (70, 56, 100), (200, 136, 72), (9000, 48, 72), (34000, 48, 36)
WIDE_PRODUCTS = (300, 72, 36), (18000, 128, 200), (200, 128, 992)


@dataclass(frozen=True)
class _Block:
    """Layers, channels of the input, of a layer and of a bottleneck, and pixels of a side."""

    layers: int
    inputs: int
    growth: int
    bottleneck: int
    side: int


# The first blocks of DenseNet-BC-100-12 and of DenseNet-121.
SMALL, PHOTOGRAPHS = _Block(16, 24, 12, 48, 32), _Block(6, 64, 32, 128, 56)
# Products of half precision by an H200's matrix units.
HALF_FLOPS = 790e12


def bench_cases() -> Iterator[Case]:
    for images, block in ((64, SMALL), (512, SMALL), (128, PHOTOGRAPHS)):
        yield _case(images, block)


def _case(images: int, of: _Block) -> Case:
    width = of.inputs + of.layers * of.growth

    def inputs() -> tuple[Tensor, ...]:
        x = torch.randn(images, of.inputs, of.side, of.side, device="cuda").bfloat16()
        given = [x.contiguous(memory_format=torch.channels_last)]
        given += parameters(of.layers, of.inputs, of.growth, of.bottleneck)
        above = torch.randn(images, width, of.side, of.side, device="cuda").bfloat16()
        return *(tensor.requires_grad_() for tensor in given), above.contiguous(memory_format=torch.channels_last)

    peers = {name: forward_and_backward_of(peer) for name, peer in {"eager": _eager, **compiled(_eager)}.items()}
    pixels, channels = images * of.side**2, range(of.inputs, width, of.growth)
    # Each of the products thrice: forward, and for the gradients of both factors.
    flops = 3 * 2 * pixels * sum(of.bottleneck * (count + 9 * of.growth) for count in channels)
    # x, y and their gradients.
    bytes_ = 2 * pixels * 2 * (of.inputs + width)
    shape = f"{images} x {of.inputs} x {of.side} x {of.side}, {of.layers} layers of {of.growth}, both"
    own, exact = forward_and_backward_of(_block), forward_and_backward_of(_eager)
    return Case("dense_block", shape, torch.bfloat16, inputs, own, peers, exact, bytes_, flops, HALF_FLOPS)


def parameters(layers: int, inputs: int, growth: int, bottleneck: int) -> list[Tensor]:
    """Draw weights, biases and kernels of float32, as autocast has them: two of each for a layer."""
    widths = [width for layer in range(layers) for width in (inputs + layer * growth, bottleneck)]
    kernels = []
    for at, width in enumerate(widths):
        kernel = torch.randn((growth, width, 3, 3) if at % 2 else (bottleneck, width, 1, 1), device="cuda")
        kernels.append(kernel / kernel[0].numel() ** 0.5)
    weights, biases = ([torch.rand(width, device="cuda") + low for width in widths] for low in (0.5, -0.5))
    return [*weights, *biases, *kernels]


def halves_of(parameters: Sequence[Tensor]) -> Halves:
    count = len(parameters) // 3
    weights, biases, kernels = (list(parameters[at : at + count]) for at in range(0, 3 * count, count))
    running = ([function(weight).detach() for weight in weights] for function in (torch.zeros_like, torch.ones_like))
    return Halves(weights, biases, None, kernels, *running)


def _block(x: Tensor, *parameters: Tensor) -> Tensor:
    return dense_block(x, halves_of(parameters), training=True)[0]


def _eager(x: Tensor, *parameters: Tensor) -> Tensor:
    count = len(parameters) // 3
    weights, biases, kernels = (parameters[at : at + count] for at in range(0, 3 * count, count))
    for first in range(0, count, 2):
        new = x
        for at in (first, first + 1):
            new = functional.relu(functional.batch_norm(new, None, None, weights[at], biases[at], True))
            new = functional.conv2d(new, kernels[at].to(x.dtype), padding=at % 2)
        x = torch.cat([x, new], 1)
    return x


def exercise() -> None:
    """Run the kernels at shapes that reach every branch, and compare with the reference."""
    for sizes in PRODUCTS:
        _exercise_product(torch.bfloat16, *sizes)
    for images in ((3, 9, 7, 48, 12), (70, 1, 1, 64, 6), (1, 3, 40, 40, 16), (70, 16, 16, 48, 12)):
        _exercise_convolution(torch.bfloat16, *images)
    begin("dense_block", (2, 24, 9, 7), torch.bfloat16)
    x, *parameters = (tensor.requires_grad_() for tensor in _few())
    y = _block(x, *parameters)
    refuse_difference("dense_block", y, _eager(*(tensor.detach().double() for tensor in (x, *parameters))))
    y.float().square().sum().backward()
    for sizes in WIDE_PRODUCTS:
        _exercise_product(torch.bfloat16, *sizes)


def _few() -> list[Tensor]:
    x = torch.randn(2, 24, 9, 7, device="cuda").bfloat16().contiguous(memory_format=torch.channels_last)
    return [x, *parameters(3, 24, 12, 48)]


def _exercise_product(dtype: torch.dtype, rows: int, outputs: int, channels: int) -> None:
    padded = -(-channels // 8) * 8
    x = torch.randn(rows, padded, device="cuda").to(dtype)[:, :channels]
    w = torch.zeros(outputs, padded, device="cuda", dtype=dtype)
    w[:, :channels] = torch.randn(outputs, channels, device="cuda") / channels**0.5
    dy = torch.randn(rows, outputs, device="cuda").to(dtype)
    norm = (*(torch.rand(4, channels, device="cuda") + 0.5), None, 2, 1e-5)
    compare("dense_block", "dense_product", x, w, *norm, True)
    if products_fit(x, outputs, channels):
        gradient = torch.randn(rows, padded, device="cuda").to(dtype)[:, :channels]
        vectors = torch.ones(2, channels, device="cuda")
        behind = torch.rand(3, outputs, device="cuda")
        for y in ((None,) * 4, (dy.clone(), *behind)):
            compare("dense_block", "dense_product_backward", dy, *y, w, x, *norm, True, gradient, *vectors)


def _exercise_convolution(dtype: torch.dtype, images: int, height: int, width: int, channels: int, growth: int) -> None:
    padded, rows = -(-growth // 8) * 8, images * height * width
    x = torch.randn(rows, channels, device="cuda").to(dtype)
    filters = torch.zeros(padded, 3, 3, channels, device="cuda", dtype=dtype)
    filters[:growth] = torch.randn(growth, 3, 3, channels, device="cuda") / (9 * channels) ** 0.5
    dy = torch.zeros(rows, padded, device="cuda", dtype=dtype)
    dy[:, :growth] = torch.randn(rows, growth, device="cuda")
    norm = (*(torch.rand(4, channels, device="cuda") + 0.5), torch.tensor(1.2, device="cuda"), 2, 1e-5)
    for statistics in (True, False):
        y, vectors = torch.zeros(rows, growth + 4, device="cuda", dtype=dtype), torch.ones(2, growth, device="cuda")
        compare(
            "dense_block", "dense_convolution", x, filters, *norm, height, width, y[:, :growth], *vectors, statistics
        )
    compare("dense_block", "dense_convolution_backward", dy, filters, x, *norm, True, height, width, growth)
