"""Convolutional highway network: a learnt gate mixes each layer's output with its input.

Source: Srivastava, Greff and Schmidhuber, Training Very Deep Networks, NIPS 2015, section 2: y = T H + (1 - T) x with
T = sigmoid(gate(x)), whose bias begins below zero, so that layers begin by passing x on. A plain layer, of stride 2,
changes the shape between stages.

The paper's networks have no norm, and widths of their own. Here H has a batch norm, and the stages have the channels of
ResNet (16, 32 and 64), so that the gate is what differs. n layers per stage have as many convolutions as n units of
ResNet. Depth 31 on 10 classes has 898,282 parameters (ResNet-56: 853,018).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from models.layers.norm_activation import NormActivation
from models.layers.residual import Classifier, convolution, image_channels, refuse_depth
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
STAGES = 3


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    depth: layers and the classifier, 3 n + 4 for n highway layers per stage; width: channels of the first stage, which
    each later stage doubles; gate_bias: with which each gate begins.
    """

    depth: Annotated[int, Range(7, 1000)] = 19
    width: Annotated[int, Range(1, 1024)] = 16
    gate_bias: Annotated[float, Range(-10, 10)] = -2.0
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")

    def __post_init__(self) -> None:
        refuse_depth(self.depth, STAGES, STAGES + 1)


DEBUG = Settings(depth=7, width=4)


class HighwayLayer(nn.Module):
    """T H + (1 - T) x: x [N, C, H, W] -> the same shape."""

    def __init__(self, width: int, gate_bias: float, activation: Tagged) -> None:
        super().__init__()
        self.transform = nn.Sequential(convolution(width, width), NormActivation(width, activation))
        self.gate = nn.Conv2d(width, width, 3, padding=1)
        nn.init.constant_(self.gate.bias, gate_bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.gate(x)) * (self.transform(x) - x)


def build(settings: Settings, description: dict[str, Any]) -> Classifier:
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    inputs = image_channels(description, "highway", halvings=STAGES - 1)
    body: list[nn.Module] = []
    for stage in range(STAGES):
        width = settings.width * 2**stage
        body += [convolution(inputs, width, stride=2 if stage else 1), NormActivation(width, settings.activation)]
        for _ in range((settings.depth - 1) // STAGES - 1):
            body.append(HighwayLayer(width, settings.gate_bias, settings.activation))
        inputs = width
    return Classifier(body, inputs, len(description["classes"]))
