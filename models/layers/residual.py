"""The parts of residual networks: convolutions, shortcuts, units in both orders, and the classifier at the end.

Sources: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 3 (activation after the sum), and
Identity Mappings in Deep Residual Networks, ECCV 2016, section 4 (norm and activation before each convolution).

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from models.activations import make_activation
from models.layers.norm_activation import NormActivation
from reread.storage.errors import InputError
from reread.storage.settings import Tagged

# The largest block of channels in oneDNN's convolutions: that of AVX-512 in float32; of AVX2 it is 8.
BLOCK = 16


class StridedProjection(nn.Conv2d):
    """A 1x1 convolution with a stride, without bias and with fewer than BLOCK inputs; a CPU adds inputs of zeros.

    With the channels last and fewer of them than its block, oneDNN's gradient of the weights writes past the end of its
    workspace: a crash, or wrong gradients (oneDNN 3.12, https://github.com/uxlfoundation/oneDNN/issues/6035).
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type != "cpu":
            return super().forward(x)
        zeros = (0, 0, 0, 0, 0, BLOCK - self.in_channels)
        return functional.conv2d(functional.pad(x, zeros), functional.pad(self.weight, zeros), stride=self.stride)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    """Return a convolution without bias that keeps the number of pixels at stride 1."""
    few = kernel == 1 and stride > 1 and groups == 1 and inputs < BLOCK
    kind = StridedProjection if few else nn.Conv2d
    return kind(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


class PaddedIdentity(nn.Module):
    """The shortcut without parameters (option A of the first source): every ``stride``-th pixel, new channels zero."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.new_channels = outputs - inputs
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        return functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def padded_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity, or PaddedIdentity where the shape changes."""
    return nn.Identity() if inputs == outputs and stride == 1 else PaddedIdentity(inputs, outputs, stride)


def projected_shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """Return the identity, or a 1x1 convolution and a norm where the shape changes (option B of the first source)."""
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def basic_branch(inputs: int, outputs: int, stride: int, activation: Tagged) -> nn.Sequential:
    """Return two 3x3 convolutions, each with its norm, for a unit whose activation follows the sum."""
    return nn.Sequential(
        convolution(inputs, outputs, stride=stride),
        NormActivation(outputs, activation),
        convolution(outputs, outputs),
        nn.BatchNorm2d(outputs),
    )


class PostActivation(nn.Module):
    """activation(shortcut(x) + branch(x)); ``scale``, a scalar, multiplies the branch."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module, outputs: int, activation: Tagged) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.activate = make_activation(activation, outputs)

    def forward(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        branch = self.branch(x)
        return self.activate(self.shortcut(x) + (branch if scale is None else branch * scale))


class PreActivation(nn.Module):
    """x + branch(a), a = activation(norm(x)); where the shape changes, a 1x1 convolution of a replaces x.

    ``branch`` begins with a convolution: the norm and the activation before it are the unit's own.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, branch: nn.Module, activation: Tagged) -> None:
        super().__init__()
        self.before = NormActivation(inputs, activation)
        self.branch = branch
        keeps = inputs == outputs and stride == 1
        self.projection = None if keeps else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.before(x)
        shortcut = x if self.projection is None else self.projection(activated)
        return shortcut + self.branch(activated)


class Classifier(nn.Module):
    """A body that ends in ``width`` channels, the mean over pixels, and a linear classifier."""

    def __init__(self, body: Iterable[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.classifier = nn.Linear(width, classes)
        draw_weights(self)

    def forward(self, images: Tensor) -> Tensor:
        """images float [N, C, H, W], normalised -> logits float [N, K]."""
        return self.classifier(self.body(images).mean(dim=(2, 3)))


def draw_weights(network: nn.Module) -> None:
    """Draw convolutions by the fan out, as the authors of both sources do (He et al. 2015), and zero linear biases."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out")
        elif isinstance(module, nn.Linear):
            nn.init.zeros_(module.bias)


def image_channels(description: dict[str, Any], network: str, halvings: int) -> int:
    """Return the channels of a prepared image data set; InputError where its images cannot be halved so often."""
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < 2**halvings:
        raise InputError(
            f"images of {height} x {width} pixels are too small for {network}: it halves them {halvings} times"
        )
    return channels


def unit_shapes(inputs: int, widths: Iterable[int], units: int) -> Iterator[tuple[int, int, int]]:
    """Yield (inputs, outputs, stride) of each unit, ``units`` for each of ``widths``; all but the first width halve."""
    for stage, outputs in enumerate(widths):
        for unit in range(units):
            yield inputs, outputs, 2 if stage and not unit else 1
            inputs = outputs


def refuse_depth(depth: int, per_layer: int, others: int) -> None:
    """Raise InputError with the nearest right depth where ``depth`` is not per_layer n + others for an n from 1."""
    if (depth - others) % per_layer or depth <= others:
        right = others + per_layer * max(1, round((depth - others) / per_layer))
        raise InputError(f"depth is {depth}: it must be {per_layer} n + {others}, the nearest is {right}")
