"""A small network for CIFAR-10 that trains in seconds.

Source: Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, 2024, section 3: a first 2x2
convolution that whitens patches of the training images and is frozen, three blocks of 3x3 convolutions that begin as
the identity, norms without a scale whose biases learn 64 times as fast, and a head that is scaled down to one ninth.
SIZES are its airbench94, 95 and 96. The other parts of its recipe are training's:
reread/batches/augmentations/alternating_flip.py, ``lookahead_decay`` and schedule ``one_cycle``.

Shape legend: N images, C channels, H x W pixels, F = 8 C filters, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from models.activations import make_activation
from models.layers.max_pooling import max_pool2d
from models.layers.norm_activation import norm_activation
from models.layers.views import ViewAverage, Views
from models.layers.whitening import Whitening
from reread.storage.errors import InputError
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
BLOCKS = 3
# The whitening takes one pixel of each side, and each block halves what is left.
SMALLEST = 2**BLOCKS + 1
NORM_EPSILON = 1e-12


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    widths: channels of each block; convolutions: of each block, where three have a residual connection around the last
    two.

    whitening: false draws and trains the first convolution like the others. norm_lr_scale: of the norms' biases, as a
    share of the learning rate; norm_momentum: of the running statistics, as PyTorch counts it; head_scale: factor of
    the logits. views: what evaluation averages the logits of (models/layers/views.py).
    """

    widths: tuple[Annotated[int, Range(1, 4096)], ...] = (64, 256, 256)
    convolutions: Literal[2, 3] = 2
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("gelu")
    whitening: bool = True
    norm_lr_scale: Annotated[float, Range(0, 1000)] = 64.0
    norm_momentum: Annotated[float, Range(0, 1)] = 0.4
    head_scale: Annotated[float, Range(0, 1000, exclusive=True)] = 1 / 9
    views: Views = "image"

    def __post_init__(self) -> None:
        if len(self.widths) != BLOCKS:
            raise InputError(f"widths are {list(self.widths)}: give {BLOCKS}, one for each block")


DEBUG = Settings(widths=(8, 8, 8))
SIZES: Mapping[str, Mapping[str, Any]] = {
    "94": {"widths": [64, 256, 256], "convolutions": 2},
    "95": {"widths": [128, 384, 384], "convolutions": 2},
    "96": {"widths": [128, 512, 512], "convolutions": 3},
}


class Block(nn.Module):
    """Convolution, maximum pooling, norm and activation, then one or two convolutions with norm and activation."""

    def __init__(self, inputs: int, outputs: int, settings: Settings) -> None:
        super().__init__()
        widths = [inputs, *[outputs] * (settings.convolutions - 1)]
        self.convolutions = nn.ModuleList(identity_convolution(width, outputs) for width in widths)
        self.norms: Any = nn.ModuleList(norm_without_scale(outputs, settings.norm_momentum) for _ in widths)
        self.activations = nn.ModuleList(make_activation(settings.activation, outputs) for _ in widths)

    def forward(self, x: Tensor) -> Tensor:
        x = max_pool2d(self.convolutions[0](x))
        shortcut = x = norm_activation(self.norms[0], self.activations[0], x)
        x = self.convolutions[1](x)
        x = norm_activation(self.norms[1], self.activations[1], x)
        if len(self.convolutions) == 2:
            return x
        return self.activations[2](norm_activation(self.norms[2], None, self.convolutions[2](x)) + shortcut)


class FastNet(ViewAverage):
    uses_kernels = True

    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        super().__init__()
        self.views = settings.views
        self.head_scale = settings.head_scale
        self.norm_lr_scale = settings.norm_lr_scale
        self.whitening = Whitening(channels, settings.whitening)
        self.activation = make_activation(settings.activation, self.whitening.out_channels)
        widths = (self.whitening.out_channels, *settings.widths)
        self.blocks = nn.Sequential(*(Block(*pair, settings) for pair in pairwise(widths)))
        self.head = nn.Linear(widths[-1], classes, bias=False)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Kernels decay; vectors do not, and the norms' biases have a learning rate of their own."""
        norms = [norm.bias for norm in self.modules() if isinstance(norm, nn.BatchNorm2d)]
        known = {id(bias) for bias in norms}
        others = [tensor for tensor in self.parameters() if tensor.requires_grad and id(tensor) not in known]
        return [
            {"params": params, "lr_scale": scale, "weight_decay": decay, "lookup": False}
            for params, scale, decay in (
                ([tensor for tensor in others if tensor.ndim >= 2], 1.0, True),
                ([tensor for tensor in others if tensor.ndim < 2], 1.0, False),
                (norms, self.norm_lr_scale, False),
            )
            if params
        ]

    def logits(self, images: Tensor) -> Tensor:
        """images float [N, C, H, W] -> logits float32 [N, K]."""
        x = self.whitening(images, self.activation)
        return self.head(self.blocks(x).amax(dim=(2, 3))).float() * self.head_scale


def identity_convolution(inputs: int, outputs: int) -> nn.Conv2d:
    """Build a 3x3 convolution whose first outputs are initially its inputs."""
    convolution = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    nn.init.dirac_(convolution.weight.data[:inputs])
    return convolution


def norm_without_scale(channels: int, momentum: float) -> nn.BatchNorm2d:
    """Build a batch norm whose scale stays 1."""
    norm = nn.BatchNorm2d(channels, NORM_EPSILON, momentum)
    norm.weight.requires_grad_(False)
    return norm


def build(settings: Settings, description: dict[str, Any]) -> FastNet:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < SMALLEST:
        raise InputError(f"images of {height} x {width} pixels are too small for fastnet: it needs {SMALLEST}")
    return FastNet(settings, channels, len(description["classes"]))
