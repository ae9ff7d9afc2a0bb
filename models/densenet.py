"""DenseNet-BC for small images: each layer reads what all layers of its block before it wrote.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 3: three dense blocks, composite
function norm-activation-convolution, bottleneck (B) of 4 growth_rate channels, compression (C) in the transitions;
the stem is a 3x3 convolution to 2 growth_rate channels, with no pooling. Depth 100 and growth rate 12 on 10 classes
have 769,162 parameters (the paper's 0.8M).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from models.layers.dense import Composite, DenseLayer, ImageClassifier
from storage.errors import InputError
from storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
BLOCKS = 3


@dataclass(frozen=True)
class Settings:
    """depth: convolutions and the classifier, 6 n + 4 for n layers a block; growth_rate: channels a layer adds;
    compression: share of the channels that a transition keeps; dropout: after each convolution of a layer."""

    depth: Annotated[int, Range(10, 1000)] = 16
    growth_rate: Annotated[int, Range(1, 512)] = 8
    compression: Annotated[float, Range(0.01, 1)] = 0.5
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")
    dropout: Annotated[float, Range(0, 0.95)] = 0.0

    def __post_init__(self) -> None:
        if (self.depth - 4) % (2 * BLOCKS):
            right = 4 + 2 * BLOCKS * max(1, round((self.depth - 4) / (2 * BLOCKS)))
            raise InputError(f"depth is {self.depth}: it must be 6 n + 4 for n layers a block, the nearest is {right}")


DEBUG = Settings(depth=10, growth_rate=4)


class DenseNet(ImageClassifier):
    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        width = 2 * settings.growth_rate
        body: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1, bias=False)]
        for block in range(BLOCKS):
            for _ in range((settings.depth - 4) // (2 * BLOCKS)):
                body.append(DenseLayer(width, settings.growth_rate, settings.activation, settings.dropout))
                width += settings.growth_rate
            if block < BLOCKS - 1:
                kept = max(1, int(width * settings.compression))
                body += [Composite(width, kept, 1, settings.activation, settings.dropout), nn.AvgPool2d(2)]
                width = kept
        super().__init__(body, width, settings.activation, classes)


def build(settings: Settings, description: dict[str, Any]) -> DenseNet:
    """The network for a prepared image data set (``description`` is its prepared.json)."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < 2 ** (BLOCKS - 1):
        raise InputError(f"images of {height} x {width} pixels are too small for densenet: it halves them twice")
    return DenseNet(settings, channels, len(description["classes"]))
