"""ResNet for small images, with the activation after each sum, and the plain network of the same layers.

Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2: a 3x3 convolution, three stages
of n units of two 3x3 convolutions with 16, 32 and 64 channels, depth 6 n + 2, and shortcuts without parameters. Without
shortcuts it is the paper's plain network. Depth 110 on 10 classes has 1,727,962 parameters (the paper's 1.7M), with
shortcuts or without.

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import (
    Classifier,
    PostActivation,
    basic_branch,
    convolution,
    image_channels,
    padded_shortcut,
    refuse_depth,
    unit_shapes,
)
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES = 3


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: convolutions and the classifier, 6 n + 2 for n units per stage; width: channels of the first stage, which
    each later stage doubles; shortcut: ``none`` is the plain network.
    """

    depth: Annotated[int, Range(8, 2000)] = 20
    width: Annotated[int, Range(1, 1024)] = 16
    shortcut: Literal["identity", "none"] = "identity"
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")

    def __post_init__(self) -> None:
        refuse_depth(self.depth, 2 * STAGES, 2)


DEBUG = Settings(depth=8, width=4)
DEPTHS = (20, 32, 44, 56, 110, 1202)
SIZES: Mapping[str, Mapping[str, Any]] = {
    **{str(depth): {"depth": depth} for depth in DEPTHS},
    **{f"plain-{depth}": {"depth": depth, "shortcut": "none"} for depth in DEPTHS[:-1]},
}


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels, activation = image_channels(description, "resnet", halvings=STAGES - 1), settings.activation
    widths = [settings.width * 2**stage for stage in range(STAGES)]
    body: list[nn.Module] = [convolution(channels, settings.width), NormActivation(settings.width, activation)]
    for inputs, outputs, stride in unit_shapes(settings.width, widths, (settings.depth - 2) // (2 * STAGES)):
        if settings.shortcut == "none":
            body += [convolution(inputs, outputs, stride=stride), NormActivation(outputs, activation)]
            body += [convolution(outputs, outputs), NormActivation(outputs, activation)]
        else:
            branch = basic_branch(inputs, outputs, stride, activation)
            body.append(PostActivation(branch, padded_shortcut(inputs, outputs, stride), outputs, activation))
    return Classifier(body, widths[-1], len(description["classes"]))
