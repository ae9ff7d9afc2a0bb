"""Wide residual network: a pre-activation ResNet with few layers and many channels.

Source: Zagoruyko and Komodakis, Wide Residual Networks, BMVC 2016, section 2 and table 1: a 3x3 convolution to 16
channels, three stages of n units of two 3x3 convolutions with 16 k, 32 k and 64 k channels, depth 6 n + 4, and dropout
between a unit's convolutions. On 10 classes WRN-16-4 has 2,748,890 parameters and WRN-28-10 36,479,194 (the paper's
36.5M).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import Classifier, PreActivation, convolution, image_channels, refuse_depth, unit_shapes
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES = 3
STEM = 16


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: convolutions, 6 n + 4 for n units per stage, with those of three shortcuts; widening: the paper's k, 16 k
    channels in the first stage; dropout: between the convolutions of a unit.
    """

    depth: Annotated[int, Range(10, 1000)] = 16
    widening: Annotated[int, Range(1, 64)] = 1
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")
    dropout: Annotated[float, Range(0, 0.95)] = 0.0

    def __post_init__(self) -> None:
        refuse_depth(self.depth, 2 * STAGES, 4)


DEBUG = Settings(depth=10)
SIZES: Mapping[str, Mapping[str, Any]] = {
    f"{depth}-{widening}": {"depth": depth, "widening": widening}
    for depth, widening in ((10, 2), (16, 4), (16, 8), (16, 10), (22, 8), (28, 10), (28, 12), (40, 4))
}


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels, activation = image_channels(description, "wide_resnet", halvings=STAGES - 1), settings.activation
    widths = [STEM * settings.widening * 2**stage for stage in range(STAGES)]
    body: list[nn.Module] = [convolution(channels, STEM)]
    for inputs, outputs, stride in unit_shapes(STEM, widths, (settings.depth - 4) // (2 * STAGES)):
        branch = nn.Sequential(
            convolution(inputs, outputs, stride=stride),
            NormActivation(outputs, activation),
            nn.Dropout(settings.dropout),
            convolution(outputs, outputs),
        )
        body.append(PreActivation(inputs, outputs, stride, branch, activation))
    return Classifier([*body, NormActivation(widths[-1], activation)], widths[-1], len(description["classes"]))
