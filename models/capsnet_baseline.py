"""The convolutional network that the capsule network's paper compares with, at its size and at the capsules' size.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, section 5: three 5x5 convolutions of
256, 256 and 128 channels, two fully connected layers of 328 and 192 units, dropout, softmax. With the images padded so
that they keep their size this has 35,445,522 parameters on 28 x 28 pixels and 10 classes: the paper's 35.4M.

SIZES has it, and one with 8.2M parameters, as many as the capsule network: there the convolutions do not pad, and the
first fully connected layer has 174 units.

Shape legend: N images, C x H x W pixels, K classes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from reread.storage.errors import InputError
from reread.storage.settings import Range

KIND = "image"
FILTER = 5
CONVOLUTIONS = 3


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    channels: of each convolution; padded: whether these keep the size of an image; units: of each fully connected
    layer; dropout: before the classifier.
    """

    channels: tuple[Annotated[int, Range(1, 4096)], ...] = (256, 256, 128)
    padded: bool = True
    units: tuple[Annotated[int, Range(1, 65536)], ...] = (328, 192)
    dropout: Annotated[float, Range(0, 0.95)] = 0.5

    def __post_init__(self) -> None:
        if len(self.channels) != CONVOLUTIONS:
            raise InputError(f"channels are {list(self.channels)}: give {CONVOLUTIONS} numbers, one per convolution")


DEBUG = Settings(channels=(4, 4, 4), units=(8, 8), dropout=0.0)
SIZES: Mapping[str, Mapping[str, Any]] = {
    "35.4M": {"padded": True, "units": [328, 192]},
    "8.2M": {"padded": False, "units": [174, 192]},
}


class ConvolutionalNetwork(nn.Module):
    def __init__(self, settings: Settings, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        padding = FILTER // 2 if settings.padded else 0
        for own in settings.channels:
            layers += [nn.Conv2d(channels, own, FILTER, padding=padding), nn.ReLU()]
            channels = own
        lost = 0 if settings.padded else CONVOLUTIONS * (FILTER - 1)
        layers.append(nn.Flatten())
        inputs = channels * (height - lost) * (width - lost)
        for units in settings.units:
            layers += [nn.Linear(inputs, units), nn.ReLU()]
            inputs = units
        self.layers = nn.Sequential(*layers, nn.Dropout(settings.dropout), nn.Linear(inputs, classes))

    def forward(self, images: Tensor) -> Tensor:
        """images float32 [N, C, H, W] -> scores [N, K]."""
        return self.layers(images)


def build(settings: Settings, description: dict[str, Any]) -> ConvolutionalNetwork:
    """Build the network for a prepared image data set (``description`` is its prepared.json).

    InputError for images that convolutions without padding leave nothing of.
    """
    _, height, width, channels = description["arrays"]["images"]["shape"]
    smallest = 1 if settings.padded else CONVOLUTIONS * (FILTER - 1) + 1
    if min(height, width) < smallest:
        raise InputError(
            f"images of {height} x {width} pixels are too small for capsnet_baseline: without padding it needs "
            f"{smallest} x {smallest}"
        )
    return ConvolutionalNetwork(settings, channels, height, width, len(description["classes"]))
