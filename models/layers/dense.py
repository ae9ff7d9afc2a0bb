"""The parts of DenseNets: norm-activation-convolution, and layers whose output is concatenated with their input.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 3.

On a GPU with the library of cuda_ext/ built, norm and activation are one operation, and so is a dense block
(cuda_ext/dense_block), eager, compiled and exported. Otherwise, and in a block with dropout, the modules run one by
one.

Shape legend: N images, C channels, H x W pixels, k growth rate.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cuda_ext.dense_block import Halves, dense_block
from models.activations import make_activation
from models.layers.norm_activation import fuses, norm_activation, trained_beta
from models.layers.views import ViewAverage
from reread.storage.settings import Tagged


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
        norm: Any
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
            return super().forward(x)  # type: ignore[no-untyped-call]
        statistics = None
        group: Any
        norm: Any
        for group in _groups(self):
            if isinstance(group[0], DenseLayer):
                x, statistics = dense_layers(group, x)
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


def dense_layers(layers: Sequence[DenseLayer], x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Run the layers of a block as one operation; where it does not compute what they do, one by one.

    x [N, C, H, W] -> [N, C + len(layers) k, H, W], and its mean and variance if a norm may take them.
    """
    halves: list[Any] = [half for layer in layers for half in (layer.bottleneck, layer.convolution)]
    norms = [half[0] for half in halves]
    drops = any(half[3].p and half[3].training for half in halves)
    alike = len({(norm.training, norm.eps, norm.momentum) for norm in norms}) == 1
    betas = [beta for beta in (trained_beta(half[1]) for half in halves) if beta is not None]
    if drops or not alike or len(betas) not in (0, len(halves)) or x.shape[0] * x.shape[2] * x.shape[3] < 2:
        return nn.Sequential(*layers)(x), None
    if norms[0].training:
        torch._foreach_add_([norm.num_batches_tracked for norm in norms], 1)
    parameters = Halves(
        [norm.weight for norm in norms],
        [norm.bias for norm in norms],
        betas or None,
        [half[2].weight for half in halves],
        [norm.running_mean for norm in norms],
        [norm.running_var for norm in norms],
    )
    return dense_block(
        x,
        parameters,
        training=norms[0].training,
        momentum=norms[0].momentum,
        epsilon=norms[0].eps,
        activation=halves[0][1].kernel,
    )
