"""The parts of DenseNets: norm-activation-convolution, and layers whose output is concatenated with their input.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 3.

On a GPU with the library of cuda_ext/ built, norm and activation are one operation. A dense block is one function over
one channels-last buffer: each layer writes its new channels next to those it read, without a
copy; the mean and variance of a channel are computed once, when it is written, for all layers that read it; and the
gradient of the buffer is summed in place. Otherwise, under torch.compile, and in a block with dropout, the modules run
one by one.

Shape legend: N images, C channels, H x W pixels, R = N H W rows, k growth rate.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from models.activations import make_activation
from models.layers.norm_activation import fuses, norm_activation, trained_beta
from models.layers.views import ViewAverage
from storage.settings import Tagged

# Channels are padded to a multiple of it where a matrix product reads them: it then reads 16 bytes at a time.
PADDED = 8
# Rows of the buffer begin on 64 bytes of half precision, as memory is read.
ROW = 32


class Composite(nn.Sequential):
    """Norm, activation, convolution, dropout."""

    def __init__(self, inputs: int, outputs: int, kernel: int, activation: Tagged, dropout: float) -> None:
        super().__init__(
            nn.BatchNorm2d(inputs),
            make_activation(activation, inputs),
            nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False),
            nn.Dropout(dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        norm, activate, convolution, dropout = self
        return dropout(convolution(norm_activation(norm, activate, x)))


class DenseLayer(nn.Module):
    """Bottleneck of 1x1 and 3x3 convolutions whose output is concatenated with its input."""

    def __init__(self, inputs: int, growth_rate: int, activation: Tagged, dropout: float) -> None:
        super().__init__()
        self.bottleneck = Composite(inputs, 4 * growth_rate, 1, activation, dropout)
        self.convolution = Composite(4 * growth_rate, growth_rate, 3, activation, dropout)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.convolution(self.bottleneck(x))], dim=1)


class Body(nn.Sequential):
    """A network's layers in turn. With kernels, neighbouring dense layers run as a block, a norm with its activation,
    and a transition's pooling before its convolution, which it commutes with."""

    @property
    def uses_kernels(self) -> bool:
        return self[-1].kernel is not None

    def forward(self, x: Tensor) -> Tensor:
        # All activations of a network are alike. A norm may have been replaced since the network was built.
        norms = (module for module in self.modules() if isinstance(module, nn.modules.batchnorm._NormBase))
        if not fuses(x, self[-1], norms):
            return super().forward(x)
        statistics = None
        for group in _groups(self):
            if isinstance(group[0], DenseLayer):
                x, statistics = dense_block(group, x)
                continue
            if isinstance(group[0], nn.BatchNorm2d):
                x = norm_activation(group[0], group[1], x, statistics)
            elif isinstance(group[0], Composite):
                norm, activate, convolution, dropout = group[0]
                x = dropout(convolution(norm_activation(norm, activate, x, statistics, pooled=True)))
            else:
                x = group[0](x)
            statistics = None
        return x


class ImageClassifier(ViewAverage):
    """A body that ends in ``width`` channels, norm and activation, the mean over pixels, and a linear classifier."""

    def __init__(self, body: Iterable[nn.Module], width: int, activation: Tagged, classes: int) -> None:
        """Convolutions begin as in section 4.2 (He et al. 2015)."""
        super().__init__()
        self.body = Body(*body, nn.BatchNorm2d(width), make_activation(activation, width))
        self.classifier = nn.Linear(width, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        nn.init.zeros_(self.classifier.bias)

    def logits(self, images: Tensor) -> Tensor:
        return self.classifier(self.body(images).mean(dim=(2, 3)))


def _groups(modules: Iterable[nn.Module]) -> Iterator[list[nn.Module]]:
    """Group the layers that run as one: a block; a norm and its activation; a transition; any other layer alone."""
    group: list[nn.Module] = []
    for module in modules:
        joins = group and (
            (isinstance(module, DenseLayer) and isinstance(group[0], DenseLayer))
            or (isinstance(group[0], nn.BatchNorm2d | Composite) and len(group) == 1)
        )
        if group and not joins:
            yield group
            group = []
        group.append(module)
    if group:
        yield group


def dense_block(layers: Sequence[DenseLayer], x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """x [N, C, H, W] -> [N, C + len(layers) k, H, W], and its mean and variance if a norm may take them."""
    halves = [half for layer in layers for half in (layer.bottleneck, layer.convolution)]
    norms = [half[0] for half in halves]
    drops = any(half[3].p and half[3].training for half in halves)
    alike = len({(norm.training, norm.eps, norm.momentum) for norm in norms}) == 1
    if drops or not alike or x.shape[0] * x.shape[2] * x.shape[3] < 2:
        return nn.Sequential(*layers)(x), None
    device = x.device.type
    if torch.is_autocast_enabled(device):
        x = x.to(torch.get_autocast_dtype(device))
    block = _Block(
        activation=halves[0][1].kernel,
        epsilon=norms[0].eps,
        momentum=norms[0].momentum,
        training=norms[0].training,
        keeps=torch.is_grad_enabled(),
        running_means=[norm.running_mean for norm in norms],
        running_variances=[norm.running_var for norm in norms],
    )
    if block.training:
        torch._foreach_add_([norm.num_batches_tracked for norm in norms], 1)
    parameters = []
    for norm, activate, convolution, _ in halves:
        parameters += [norm.weight, norm.bias, trained_beta(activate), convolution.weight]
    with torch.autocast(device, enabled=False):
        x, mean, variance = _DenseBlock.apply(x, block, *parameters)
    return x, (mean, variance) if block.training else None


@dataclass(frozen=True)
class _Block:
    """The values that all layers of a block share, and the running statistics of their norms, two per layer.

    keeps: whether a backward pass may follow."""

    activation: str
    epsilon: float
    momentum: float
    training: bool
    keeps: bool
    running_means: list[Tensor]
    running_variances: list[Tensor]


@dataclass
class _Half:
    """Norm, activation and convolution of one half of a layer: its input and the statistics that normalise it."""

    weight: Tensor
    bias: Tensor
    beta: Tensor | None
    kernel: Tensor
    mean: Tensor
    variance: Tensor

    def given(self, block: _Block) -> tuple[Any, ...]:
        """Return the arguments that the kernels take after x."""
        number = fused.ACTIVATIONS.index(block.activation)
        return self.weight, self.bias, self.mean, self.variance, self.beta, number, block.epsilon


class _DenseBlock(torch.autograd.Function):
    """All layers of a dense block, over one buffer [R, C + layers k]."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, block: _Block, *parameters: Tensor | None) -> Tensor:
        statistics = fused.part("batch_statistics", x)
        append = fused.part("copy_with_statistics", x)
        normalise = fused.part("batch_norm_activation", x)
        product = fused.part("dense_product", x)
        rows, inputs = x.numel() // x.shape[1], x.shape[1]
        layers, growth = len(parameters) // 8, parameters[7].shape[0]
        width = inputs + layers * growth
        buffer = x.new_empty(rows, _padded(width, ROW))
        computed = torch.float64 if x.dtype == torch.float64 else torch.float32
        means, variances = (torch.zeros(width, dtype=computed, device=x.device) for _ in range(2))

        def put(new: Tensor, first: int) -> None:
            own = slice(first, first + new.shape[1])
            if block.training:
                append(new, buffer[:, own], means[own], variances[own])
            else:
                buffer[:, own].copy_(new)

        put(fused.rows_of(x), 0)
        saved, batch_means, batch_variances = [], [], []
        for number in range(layers):
            channels = inputs + number * growth
            first, second = _halves(block, parameters, number, computed)
            prefix = buffer[:, :channels]
            if block.training:
                first.mean, first.variance = means[:channels], variances[:channels]
            matrix, read = _matrix(first.kernel, x.dtype), None
            if fused.products_fit(prefix, len(matrix)):
                inner, *found = product(prefix, matrix, *first.given(block), block.training)
            else:
                read = normalise(prefix, *first.given(block), _padded(channels))
                inner = read @ matrix.t()
                found = statistics(inner) if block.training else ()
            if block.training:
                second.mean, second.variance = found
            activated = normalise(inner, *second.given(block), inner.shape[1])
            filters = _filters(second.kernel, x.dtype)
            new = functional.conv2d(fused.image_of(activated, x), filters, padding=1)
            put(fused.rows_of(new)[:, :growth], channels)
            if block.keeps:
                statistics_used = (first.mean, first.variance, second.mean, second.variance)
                saved += [matrix, filters, read, inner, activated, *statistics_used]
            batch_means += [first.mean, second.mean]
            batch_variances += [first.variance, second.variance]
        if block.training:
            fused.follow(
                block.running_means, block.running_variances, batch_means, batch_variances, rows, block.momentum
            )
        if block.keeps:
            ctx.save_for_backward(buffer, means, *saved, *parameters)
        ctx.block, ctx.layers, ctx.inputs, ctx.computed = block, layers, inputs, computed
        ctx.mark_non_differentiable(means, variances)
        return fused.image_of(buffer[:, :width], x), means, variances

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        buffer, means, *others = ctx.saved_tensors
        saved, parameters = others[: 9 * ctx.layers], others[9 * ctx.layers :]
        block, device = ctx.block, buffer.device
        backward = fused.part("batch_norm_activation_backward", buffer)
        add_backward = fused.part("batch_norm_activation_add_backward", buffer)
        weight_gradient = fused.part("dense_product_weight_gradient", buffer)
        finish = fused.part("centred_gradient", buffer)
        growth = parameters[7].shape[0]
        width = ctx.inputs + ctx.layers * growth
        total = torch.empty_like(buffer)
        total[:, :width].copy_(fused.rows_of(gradient))
        slope, offset = (torch.zeros(width, dtype=ctx.computed, device=device) for _ in range(2))

        def finished(first: int, last: int, columns: int) -> Tensor:
            own = slice(first, last)
            return finish(total[:, own], buffer[:, own], means[own], slope[own], offset[own], columns)

        gradients: list[Tensor | None] = [None] * len(parameters)
        for number in reversed(range(ctx.layers)):
            channels = ctx.inputs + number * growth
            matrix, filters, read, inner, activated, *statistics = saved[9 * number : 9 * number + 9]
            first, second = _halves(block, parameters, number, ctx.computed)
            first.mean, first.variance, second.mean, second.variance = statistics
            to_activated, to_kernel, _ = torch.ops.aten.convolution_backward(
                fused.image_of(finished(channels, channels + growth, _padded(growth)), gradient),
                fused.image_of(activated, gradient),
                filters, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False],
            )  # fmt: skip
            to_inner, *to_second = backward(fused.rows_of(to_activated), inner, *second.given(block), block.training)
            prefix, own = buffer[:, :channels], slice(0, channels)
            norm, into = first.given(block), (block.training, total[:, own], slope[own], offset[own])
            if read is None:
                to_matrix = weight_gradient(to_inner, prefix, *norm)
            else:
                to_matrix = (to_inner.t() @ read)[:, :channels]
            # A kernel that adds while it multiplies, with x and the gradient prefetched before the product, was slower
            # than both in turn: 516 us against 363, 204 channels of 524,288 rows, on an H200.
            to_first = add_backward(to_inner @ matrix, prefix, *norm, *into)
            for half, (to_half, to_weights) in enumerate([(to_first, to_matrix), (to_second, to_kernel[:growth])]):
                place = 8 * number + 4 * half
                gradients[place : place + 4] = [*to_half, to_weights]
        for place, (parameter, found) in enumerate(zip(parameters, gradients, strict=True)):
            gradients[place] = None if parameter is None else found.reshape(parameter.shape).to(parameter.dtype)
        return fused.image_of(finished(0, ctx.inputs, ctx.inputs), gradient), None, *gradients


def _halves(block: _Block, parameters: Sequence[Tensor | None], number: int, computed: torch.dtype) -> list[_Half]:
    """Return both halves of a layer with the running statistics; in training the batch's replace them."""
    halves = []
    for half in (2 * number, 2 * number + 1):
        weight, bias, beta, kernel = parameters[4 * half : 4 * half + 4]
        vectors = (weight, bias, beta)
        weight, bias, beta = (None if vector is None else vector.detach().to(computed) for vector in vectors)
        mean, variance = block.running_means[half].to(computed), block.running_variances[half].to(computed)
        halves.append(_Half(weight, bias, beta, kernel.detach(), mean, variance))
    return halves


def _padded(channels: int, multiple: int = PADDED) -> int:
    return -(-channels // multiple) * multiple


def _matrix(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a 1x1 convolution's weights as a matrix of outputs and padded inputs."""
    outputs, inputs = kernel.shape[:2]
    if inputs == _padded(inputs):
        return kernel.flatten(1).to(dtype)
    matrix = kernel.new_zeros(outputs, _padded(inputs), dtype=dtype)
    matrix[:, :inputs] = kernel.flatten(1)
    return matrix


def _filters(kernel: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a 3x3 convolution's weights, channels last, with outputs of zeros appended up to a padded number.

    On an H200 cuDNN takes 303 us for the three convolutions of 48 channels to 16 (512 images of 32 x 32, bf16), and
    381 us for those to 12.
    """
    outputs, inputs, *sides = kernel.shape
    if outputs == _padded(outputs):
        return kernel.to(dtype, memory_format=torch.channels_last)
    filters = kernel.new_zeros(_padded(outputs), *sides, inputs, dtype=dtype).movedim(-1, 1)
    filters[:outputs] = kernel
    return filters
