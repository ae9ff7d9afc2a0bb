"""DenseNet-BC for photographs: a stem that quarters the image, then four dense blocks.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, table 1: a 7x7 convolution and a 3x3
maximum, each of stride 2, growth rate 32, bottlenecks of 4 growth_rate channels, transitions that keep half of the
channels. Depth 121 on 1000 classes has 7,978,856 parameters, as torchvision's densenet121.

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from models.activations import make_activation
from models.layers.dense import Composite, DenseLayer, ImageClassifier
from storage.errors import InputError
from storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
LAYERS = {
    "13": (1, 1, 1, 1),
    "121": (6, 12, 24, 16),
    "169": (6, 12, 32, 32),
    "201": (6, 12, 48, 32),
    "264": (6, 12, 64, 48),
}
# The stem and the transitions divide the image's sides by this.
SHRINKS = 32


@dataclass(frozen=True)
class Settings:
    """depth: convolutions and the classifier, as in the paper's table 1, and 13 for a smallest one; growth_rate:
    channels a layer adds; dropout: after each convolution of a layer."""

    depth: Literal["13", "121", "169", "201", "264"] = "121"
    growth_rate: Annotated[int, Range(1, 512)] = 32
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")
    dropout: Annotated[float, Range(0, 0.95)] = 0.0


DEBUG = Settings(depth="13", growth_rate=4)


class DenseNet(ImageClassifier):
    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        growth, activation = settings.growth_rate, settings.activation
        width = 2 * growth
        body: list[nn.Module] = [
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            make_activation(activation, width),
            nn.MaxPool2d(3, stride=2, padding=1),
        ]
        for block, layers in enumerate(LAYERS[settings.depth]):
            if block:
                body += [Composite(width, width // 2, 1, activation, settings.dropout), nn.AvgPool2d(2)]
                width //= 2
            for _ in range(layers):
                body.append(DenseLayer(width, growth, activation, settings.dropout))
                width += growth
        super().__init__(body, width, activation, classes)


def build(settings: Settings, description: dict[str, Any]) -> DenseNet:
    """The network for a prepared image data set (``description`` is its prepared.json)."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < SHRINKS:
        raise InputError(
            f"images of {height} x {width} pixels are too small for densenet_imagenet: it divides them by {SHRINKS}"
        )
    return DenseNet(settings, channels, len(description["classes"]))
