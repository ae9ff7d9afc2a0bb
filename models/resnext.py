"""ResNeXt for small images: the 3x3 convolution of a bottleneck is split into groups.

Source: Xie et al., Aggregated Residual Transformations for Deep Neural Networks, CVPR 2017, section 5.3: a 3x3
convolution to 64 channels, three stages of n bottlenecks that put out 256, 512 and 1024 channels, depth 9 n + 2. In the
first stage a bottleneck has ``cardinality`` groups of ``base_width`` channels; each later stage doubles both widths. On
10 classes ResNeXt-29, 8x64d has 34,426,698 parameters and 16x64d 68,155,210 (the paper's 34.4M and 68.1M).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import (
    Classifier,
    PostActivation,
    convolution,
    image_channels,
    projected_shortcut,
    refuse_depth,
    unit_shapes,
)
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES = 3
EXPANSION = 4


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: convolutions and the classifier, 9 n + 2 for n units per stage; cardinality: groups; base_width: channels of
    a group in the first stage; width: channels of the stem, of which the first stage puts out four times as many.
    """

    depth: Annotated[int, Range(11, 1000)] = 29
    cardinality: Annotated[int, Range(1, 256)] = 8
    base_width: Annotated[int, Range(1, 1024)] = 4
    width: Annotated[int, Range(1, 1024)] = 64
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")

    def __post_init__(self) -> None:
        refuse_depth(self.depth, 3 * STAGES, 2)


DEBUG = Settings(depth=11, cardinality=2, base_width=2, width=4)
SIZES: Mapping[str, Mapping[str, Any]] = {
    f"29-{cardinality}x64d": {"depth": 29, "cardinality": cardinality, "base_width": 64} for cardinality in (8, 16)
}


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels, activation = image_channels(description, "resnext", halvings=STAGES - 1), settings.activation
    body: list[nn.Module] = [convolution(channels, settings.width), NormActivation(settings.width, activation)]
    widths = [EXPANSION * settings.width * 2**stage for stage in range(STAGES)]
    for inputs, outputs, stride in unit_shapes(settings.width, widths, (settings.depth - 2) // (3 * STAGES)):
        inner = settings.cardinality * settings.base_width * (outputs // widths[0])
        branch = nn.Sequential(
            convolution(inputs, inner, 1),
            NormActivation(inner, activation),
            convolution(inner, inner, stride=stride, groups=settings.cardinality),
            NormActivation(inner, activation),
            convolution(inner, outputs, 1),
            nn.BatchNorm2d(outputs),
        )
        body.append(PostActivation(branch, projected_shortcut(inputs, outputs, stride), outputs, activation))
    return Classifier(body, widths[-1], len(description["classes"]))
