"""Pre-activation ResNet for small images: norm and activation come before each convolution, and shortcuts stay clean.

Source: He et al., Identity Mappings in Deep Residual Networks, ECCV 2016, section 4 and appendix: three stages of n
units with 16, 32 and 64 channels, of two 3x3 convolutions (depth 6 n + 2), or with bottlenecks of 1x1, 3x3 and 1x1
convolutions that put out four times as many (depth 9 n + 2). Where the shape changes, the shortcut is a 1x1 convolution
of the activated input, as in the authors' code. On 10 classes depth 110 has 1,730,522 parameters and depth 164 with
bottlenecks 1,703,258 (the paper's 1.7M).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import Classifier, PreActivation, convolution, image_channels, refuse_depth, unit_shapes
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES = 3
# Convolutions of a unit, and its output's channels for each of its inner ones.
CONVOLUTIONS = {"basic": 2, "bottleneck": 3}
EXPANSION = {"basic": 1, "bottleneck": 4}


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: convolutions and the classifier, 6 n + 2 (bottleneck: 9 n + 2) for n units per stage; block: the kind of
    unit; width: inner channels of the first stage's units, which each later stage doubles.
    """

    depth: Annotated[int, Range(8, 2000)] = 20
    block: Literal["basic", "bottleneck"] = "basic"
    width: Annotated[int, Range(1, 1024)] = 16
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")

    def __post_init__(self) -> None:
        refuse_depth(self.depth, CONVOLUTIONS[self.block] * STAGES, 2)


DEBUG = Settings(depth=8, width=4)
SIZES: Mapping[str, Mapping[str, Any]] = {
    "110": {"depth": 110},
    "164": {"depth": 164, "block": "bottleneck"},
    "1001": {"depth": 1001, "block": "bottleneck"},
}


def branch(block: str, inputs: int, inner: int, stride: int, activation: Tagged) -> nn.Sequential:
    """Return the convolutions of a unit, with norm and activation before each but the first."""
    if block == "basic":
        return nn.Sequential(
            convolution(inputs, inner, stride=stride), NormActivation(inner, activation), convolution(inner, inner)
        )
    return nn.Sequential(
        convolution(inputs, inner, 1, stride),
        NormActivation(inner, activation),
        convolution(inner, inner),
        NormActivation(inner, activation),
        convolution(inner, EXPANSION[block] * inner, 1),
    )


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels = image_channels(description, "preresnet", halvings=STAGES - 1)
    block, activation = settings.block, settings.activation
    widths = [EXPANSION[block] * settings.width * 2**stage for stage in range(STAGES)]
    units = (settings.depth - 2) // (CONVOLUTIONS[block] * STAGES)
    body: list[nn.Module] = [convolution(channels, settings.width)]
    for inputs, outputs, stride in unit_shapes(settings.width, widths, units):
        convolutions = branch(block, inputs, outputs // EXPANSION[block], stride, activation)
        body.append(PreActivation(inputs, outputs, stride, convolutions, activation))
    return Classifier([*body, NormActivation(widths[-1], activation)], widths[-1], len(description["classes"]))
