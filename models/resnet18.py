"""ResNet-18 with a stem for small images: a 3x3 convolution of stride 1, and no pooling before the first stage.

Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1: four stages of two units of two 3x3
convolutions with 64, 128, 256 and 512 channels, projections where the shape changes. The stem is that of the CIFAR-10
networks (section 4.2), as is usual for ResNet-18 there. On 10 classes it has 11,173,962 parameters.

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import (
    Classifier,
    PostActivation,
    basic_branch,
    convolution,
    image_channels,
    projected_shortcut,
    unit_shapes,
)
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES, UNITS = 4, 2


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    width: channels of the first stage, which each later stage doubles.
    """

    width: Annotated[int, Range(1, 1024)] = 64
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")


DEBUG = Settings(width=4)


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels, activation = image_channels(description, "resnet18", halvings=STAGES - 1), settings.activation
    body: list[nn.Module] = [convolution(channels, settings.width), NormActivation(settings.width, activation)]
    widths = [settings.width * 2**stage for stage in range(STAGES)]
    for inputs, outputs, stride in unit_shapes(settings.width, widths, UNITS):
        branch = basic_branch(inputs, outputs, stride, activation)
        body.append(PostActivation(branch, projected_shortcut(inputs, outputs, stride), outputs, activation))
    return Classifier(body, widths[-1], len(description["classes"]))
