"""DenseNet for small images: each layer reads what all layers of its block before it wrote.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 3: three dense blocks,
composite function norm-activation-convolution, no pooling in the stem. DenseNet-BC has bottlenecks of 4 growth_rate
channels, compression in the transitions and a stem of 2 growth_rate channels; without bottlenecks the stem has 16.
Parameters on 10 classes: DenseNet-BC-100-12 769,162 (the paper's 0.8M), 250-24 15,324,406 (15.3M), 190-40 25,624,430
(25.6M); DenseNet-40-12 1,019,722 (1.0M), 100-12 6,979,642 (7.0M).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from models.layers.dense import Composite, DenseLayer, ImageClassifier
from models.layers.views import Views
from reread.storage.errors import InputError
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
BLOCKS = 3
STEM = 16  # channels of the stem, for layers without a bottleneck


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: convolutions and the classifier, 6 n + 4 (without bottlenecks 3 n + 4) for n layers per block; growth_rate:
    channels that a layer adds; compression: share of the channels that a transition keeps; dropout: after each
    convolution of a layer; bottleneck: whether a 1x1 convolution comes before a layer's 3x3; views: whose logits
    evaluation averages (models/layers/views.py).
    """

    depth: Annotated[int, Range(10, 1000)] = 16
    growth_rate: Annotated[int, Range(1, 512)] = 8
    compression: Annotated[float, Range(0.01, 1)] = 0.5
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")
    dropout: Annotated[float, Range(0, 0.95)] = 0.0
    bottleneck: bool = True
    views: Views = "image"

    @property
    def layers(self) -> int:
        """The number of layers in a block."""
        return (self.depth - 4) // self._convolutions

    @property
    def _convolutions(self) -> int:
        """Convolutions of one layer of each block."""
        return BLOCKS * (2 if self.bottleneck else 1)

    def __post_init__(self) -> None:
        each = self._convolutions
        if (self.depth - 4) % each:
            right = 4 + each * max(1, round((self.depth - 4) / each))
            raise InputError(
                f"depth is {self.depth}: it must be {each} n + 4 for n layers per block, the nearest is {right}"
            )


DEBUG = Settings(depth=10, growth_rate=4)
SIZES: Mapping[str, Mapping[str, Any]] = {
    **{
        f"{depth}-{growth}": {"depth": depth, "growth_rate": growth, "bottleneck": False, "compression": 1.0}
        for depth, growth in ((40, 12), (100, 12), (100, 24))
    },
    **{
        f"bc-{depth}-{growth}": {"depth": depth, "growth_rate": growth, "bottleneck": True, "compression": 0.5}
        for depth, growth in ((100, 12), (250, 24), (190, 40))
    },
}


class PlainLayer(nn.Module):
    """A layer without bottleneck: the output of one 3x3 convolution is concatenated with its input."""

    def __init__(self, inputs: int, growth_rate: int, activation: Tagged, dropout: float) -> None:
        super().__init__()
        self.convolution = Composite(inputs, growth_rate, 3, activation, dropout)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.convolution(x)], dim=1)


class DenseNet(ImageClassifier):
    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        growth, activation, dropout = settings.growth_rate, settings.activation, settings.dropout
        width = 2 * settings.growth_rate if settings.bottleneck else STEM
        body: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for block in range(BLOCKS):
            for _ in range(settings.layers):
                layer = DenseLayer if settings.bottleneck else PlainLayer
                body.append(layer(width, growth, activation, dropout))
                width += growth
            if block < BLOCKS - 1:
                kept = max(1, int(width * settings.compression))
                body += [Composite(width, kept, 1, activation, dropout), nn.AvgPool2d(2)]
                width = kept
        super().__init__(body, width, activation, classes)
        self.views = settings.views


def build(settings: Settings, description: dict[str, Any]) -> DenseNet:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < 2 ** (BLOCKS - 1):
        raise InputError(f"images of {height} x {width} pixels are too small for densenet: it halves them twice")
    return DenseNet(settings, channels, len(description["classes"]))
