"""ResNet with stochastic depth: in training each unit's branch is left out at random, more often the deeper it is.

Source: Huang et al., Deep Networks with Stochastic Depth, ECCV 2016, section 3: of L units, unit l keeps its branch
with probability 1 - (l / L) (1 - p_L), drawn once per batch, with p_L = .5. In evaluation that probability multiplies
the branch. Depth 110 on 10 classes has ResNet-110's 1,727,962 parameters (the paper's 1.7M).

The paper skips the computation of a branch that is left out. Here a drawn 0 or 1 multiplies the branch, so that every
step is the same CUDA graph: nothing is saved, and norms follow the statistics of branches that are left out as well.

Shape legend: N images, C channels, H x W pixels, K classes, L units.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import (
    PostActivation,
    basic_branch,
    convolution,
    draw_weights,
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

    depth: convolutions and the classifier, 6 n + 2 for n units per stage; width: channels of the first stage; survival:
    the probability p_L with which the last unit keeps its branch.
    """

    depth: Annotated[int, Range(8, 2000)] = 20
    width: Annotated[int, Range(1, 1024)] = 16
    survival: Annotated[float, Range(0.01, 1)] = 0.5
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")

    def __post_init__(self) -> None:
        refuse_depth(self.depth, 2 * STAGES, 2)


DEBUG = Settings(depth=8, width=4)
SIZES: Mapping[str, Mapping[str, Any]] = {"110": {"depth": 110}, "1202": {"depth": 1202}}


class StochasticDepth(nn.Module):
    survival: Tensor

    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        super().__init__()
        width, activation = settings.width, settings.activation
        self.stem = nn.Sequential(convolution(channels, width), NormActivation(width, activation))
        self.units = nn.ModuleList()
        widths = [width * 2**stage for stage in range(STAGES)]
        for inputs, outputs, stride in unit_shapes(width, widths, (settings.depth - 2) // (2 * STAGES)):
            branch = basic_branch(inputs, outputs, stride, activation)
            self.units.append(PostActivation(branch, padded_shortcut(inputs, outputs, stride), outputs, activation))
        share = torch.arange(1, len(self.units) + 1) / len(self.units)
        self.register_buffer("survival", 1 - share * (1 - settings.survival), persistent=False)
        self.classifier = nn.Linear(widths[-1], classes)
        draw_weights(self)

    def scales(self) -> Tensor:
        """Return the factor of each branch, float [L]: in training 1 with the probability ``survival``, else 0."""
        if not self.training:
            return self.survival
        return (torch.rand_like(self.survival) < self.survival).to(self.survival.dtype)

    def forward(self, images: Tensor) -> Tensor:
        """images float [N, C, H, W], normalised -> logits float [N, K]."""
        x = self.stem(images)
        for unit, scale in zip(self.units, self.scales().unbind(), strict=True):
            x = unit(x, scale)
        return self.classifier(x.mean(dim=(2, 3)))


def build(settings: Settings, description: dict[str, Any]) -> StochasticDepth:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    channels = image_channels(description, "stochastic_depth", halvings=STAGES - 1)
    return StochasticDepth(settings, channels, len(description["classes"]))
