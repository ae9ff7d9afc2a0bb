"""DenseNet-BC for photographs: a stem that quarters the image, then four dense blocks.

Source: Huang et al., Densely Connected Convolutional Networks, CVPR 2017, table 1: a 7x7 convolution and a 3x3
maximum, each of stride 2, bottlenecks of 4 growth_rate channels, transitions that keep half of the channels. With 1000
classes the depths 121, 161, 169 and 201 have 7,978,856, 28,681,000, 14,149,480 and 20,013,928 parameters, as
torchvision's. Weights in torchvision's names load by ``from_torchvision`` and give the same logits. In half precision
on a GPU the 7x7 convolution is computed in another form (models/layers/stem.py).

CheXNet (Rajpurkar et al., arXiv 1711.05225, 2017) is depth 121 that begins with weights of ImageNet.

Shape legend: N images, C channels, H x W pixels, K classes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from models.activations import make_activation
from models.layers.dense import Composite, DenseLayer, ImageClassifier
from models.layers.max_pooling import MaxPool2d
from models.layers.stem import Stem
from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.settings import OneOf, Range, Tagged, tagged

KIND = "image"
LAYERS = {
    "13": (1, 1, 1, 1),
    "121": (6, 12, 24, 16),
    "161": (6, 12, 36, 24),
    "169": (6, 12, 32, 32),
    "201": (6, 12, 48, 32),
    "264": (6, 12, 64, 48),
}
SIZES: Mapping[str, Mapping[str, Any]] = {
    "densenet-121": {"depth": "121"},
    "densenet-161": {"depth": "161", "growth_rate": 48},
    "densenet-169": {"depth": "169"},
    "densenet-201": {"depth": "201"},
}
# The stem and the transitions divide the image's sides by this.
SHRINKS = 32
STEM = 4


@dataclass(frozen=True)
class WeightsSettings:
    """A safetensors file that a network begins with, in torchvision's names or ours.

    path: from the current folder, in no key; sha256: of the file, 64 hex digits. A file of torch.save is refused,
    because to read it can run code: docs/results/chest-x-rays.md has the command that converts one.
    """

    path: str = field(default="", metadata={"key": False})
    sha256: str = ""

    def __post_init__(self) -> None:
        if self.path and not self.path.endswith(".safetensors"):
            raise InputError(f"path is '{self.path}': initial weights are a .safetensors file, convert it first")
        if (self.path or self.sha256) and not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InputError(f"sha256 is '{self.sha256}': give the 64 hex digits that `sha256sum FILE` prints")


@dataclass(frozen=True)
class Settings:
    """depth: convolutions and the classifier, as in the paper's table 1, and 13 for a smallest one; growth_rate:
    channels that a layer adds; dropout: after each convolution of a layer; initial_weights: None for random ones."""

    depth: Literal["13", "121", "161", "169", "201", "264"] = "121"
    growth_rate: Annotated[int, Range(1, 512)] = 32
    activation: Annotated[Tagged, OneOf("models.activations")] = tagged("relu")
    dropout: Annotated[float, Range(0, 0.95)] = 0.0
    initial_weights: WeightsSettings | None = None


DEBUG = Settings(depth="13", growth_rate=4)


class DenseNet(ImageClassifier):
    def __init__(self, settings: Settings, channels: int, classes: int) -> None:
        growth, activation = settings.growth_rate, settings.activation
        width = 2 * growth
        body: list[nn.Module] = [
            Stem(channels, width),
            nn.BatchNorm2d(width),
            make_activation(activation, width),
            MaxPool2d(3),
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
    """Build the network for a prepared image data set (``description`` is its prepared.json)."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < SHRINKS:
        raise InputError(
            f"images of {height} x {width} pixels are too small for densenet_imagenet: it divides them by {SHRINKS}"
        )
    return DenseNet(settings, channels, len(description["classes"]))


def load_initial_weights(network: DenseNet, settings: Settings) -> None:
    """Copy the weights of ``settings.initial_weights`` into a new network; with None it keeps its random ones.

    Of grey images the first convolution is the sum of the file's over its input channels, which gives what the image
    repeated to each channel would. A classifier for another number of classes stays random, and so does a trained beta.
    InputError for a file that is missing, is not the one of the digest, or does not fit.
    """
    given = settings.initial_weights
    if given is None or not given.path:
        return
    from safetensors.torch import load_file

    path = Path(given.path)
    if not path.is_file():
        raise InputError(f"initial_weights: {path} is missing: docs/results/chest-x-rays.md says how to make it")
    if sha256_file(path) != given.sha256:
        raise InputError(f"initial_weights: {path} has another sha256 than the setting ({given.sha256[:12]}…)")
    state = load_file(path)
    if any(name.startswith("features.") for name in state):
        state = from_torchvision(state)
    fit_initial_weights(network, state, str(path))


def fit_initial_weights(network: DenseNet, state: Mapping[str, Tensor], where: str) -> None:
    """Copy ``state``, in our names, into ``network``; InputError, which begins with ``where``, if it does not fit."""
    state, own = dict(state), network.state_dict()
    first = state.get("body.0.weight")
    if first is not None and first.shape[1] > 1 == own["body.0.weight"].shape[1]:
        state["body.0.weight"] = first.sum(dim=1, keepdim=True)
    if "classifier.bias" in state and state["classifier.bias"].shape != own["classifier.bias"].shape:
        del state["classifier.bias"], state["classifier.weight"]
    optional = ("num_batches_tracked", "beta", "classifier.weight", "classifier.bias")
    for name in own:
        given = state.get(name)
        if (given is None and not name.endswith(optional)) or (given is not None and given.shape != own[name].shape):
            has = "no such weight" if given is None else f"shape {list(given.shape)}"
            raise InputError(f"{where} does not fit: {name} is {list(own[name].shape)}, and the file has {has}")
    unknown = sorted(set(state) - set(own))
    if unknown:
        raise InputError(f"{where} does not fit: this network has no {unknown[0]}")
    with torch.no_grad():
        network.load_state_dict(state, strict=False)


def from_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a torchvision DenseNet's state dict in our names: also of the first files, with ``norm.1`` for ``norm1``.

    InputError for a name that no such network has.
    """
    state = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d\.)", r"\1\2", name): value for name, value in state.items()}
    matches = (re.match(r"features\.denseblock(\d+)\.denselayer(\d+)\.", name) for name in state)
    layers: dict[int, int] = {}
    for match in matches:
        if match:
            block, layer = map(int, match.groups())
            layers[block] = max(layers.get(block, 0), layer)
    names = {"features.conv0": "body.0", "features.norm0": "body.1", "classifier": "classifier"}
    place = STEM
    for block in sorted(layers):
        if block > 1:
            names |= {f"features.transition{block - 1}.norm": f"body.{place}.0"}
            names |= {f"features.transition{block - 1}.conv": f"body.{place}.2"}
            place += 2
        for layer in range(1, layers[block] + 1):
            theirs = f"features.denseblock{block}.denselayer{layer}"
            for number, half in enumerate(("bottleneck", "convolution"), 1):
                names |= {f"{theirs}.norm{number}": f"body.{place}.{half}.0"}
                names |= {f"{theirs}.conv{number}": f"body.{place}.{half}.2"}
            place += 1
    names["features.norm5"] = f"body.{place}"
    ours = {}
    for name, value in state.items():
        module, _, leaf = name.rpartition(".")
        if module not in names:
            raise InputError(f"'{name}' is no weight of torchvision's DenseNets")
        ours[f"{names[module]}.{leaf}"] = value
    return ours
