"""The capsule network: vectors whose length is the presence of a digit and whose direction is its appearance.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, section 4 and figures 1 and 2: a 9x9
convolution of 256 channels with ReLU; primary capsules, a 9x9 convolution of stride 2 to 32 types of 8 dimensions at
each position; a capsule of 16 dimensions for each class by routing by agreement. The lengths of these are the scores.
A decoder of 512 and 1024 units reconstructs the pixels from one class's capsule. On 28 x 28 pixels and 10 classes it
has 8,215,568 parameters, 6,804,224 without the decoder (the paper's 8.2M and 6.8M).

Routing. A primary capsule i predicts the capsule of class j by its vote W_ij u_i. Each iteration sums the votes,
weighted by the coupling c_ij, squashes the sum to v_j, and adds the agreement of vote and v_j to the logit of c_ij.
The paper does not say whether the gradient passes through the coupling; the authors' code lets it. Here the coupling is
a constant of the backward pass (``routing_gradient: votes``), as in most later code, unless it is ``all``. Both have
the same forward pass, and with one iteration the same gradient.

The votes are computed once, as one product for each primary capsule. Sums and agreements are one product of matrices
for each image over the same memory, which is never transposed. Under autocast the votes have half precision; logits,
coupling and squashing are float32.

Shape legend: N images, C x H x W pixels, P primary capsules of E dimensions, K classes, D dimensions of their capsules.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from reread.storage.errors import InputError
from reread.storage.settings import Range

KIND = "image"
FILTER = 9
STRIDE = 2
# Two 9x9 convolutions leave one position.
SMALLEST_IMAGE = 2 * FILTER - 1
# Under the root of a squared length, so that its gradient at zero is finite.
TINY = 1e-12
WEIGHT_DEVIATION = 0.1


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    channels: of the first convolution; primary_types: capsules at each position, of primary_dim numbers; capsule_dim:
    numbers of a class's capsule; routing_gradient: what the gradient passes through, the votes alone or the coupling
    too; reconstruction: whether there is a decoder, of decoder_units.
    """

    channels: Annotated[int, Range(1, 4096)] = 256
    primary_types: Annotated[int, Range(1, 1024)] = 32
    primary_dim: Annotated[int, Range(1, 256)] = 8
    capsule_dim: Annotated[int, Range(1, 256)] = 16
    routing_iterations: Annotated[int, Range(1, 20)] = 3
    routing_gradient: Literal["votes", "all"] = "votes"
    reconstruction: bool = True
    decoder_units: tuple[Annotated[int, Range(1, 65536)], ...] = (512, 1024)


DEBUG = Settings(channels=6, primary_types=2, primary_dim=4, capsule_dim=5, reconstruction=False, decoder_units=(8,))


class CapsuleNetwork(nn.Module):
    def __init__(self, settings: Settings, channels: int, height: int, width: int, classes: int) -> None:
        super().__init__()
        self.settings = settings
        # The positions of the second convolution.
        rows, columns = ((pixels - SMALLEST_IMAGE) // STRIDE + 1 for pixels in (height, width))
        primary = rows * columns * settings.primary_types
        self.convolution = nn.Conv2d(channels, settings.channels, FILTER)
        self.primary = nn.Conv2d(
            settings.channels, settings.primary_types * settings.primary_dim, FILTER, stride=STRIDE
        )
        weight = torch.randn(primary, settings.primary_dim, classes * settings.capsule_dim)
        self.weight = nn.Parameter(WEIGHT_DEVIATION * weight)
        self.decoder = _decoder(settings, classes, channels * height * width) if settings.reconstruction else None
        # Autocast's dtype in the last forward pass, in which the decoder computes too: the objective calls it outside.
        self.decoder_dtype: torch.dtype | None = None

    def forward(self, images: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """images float32 [N, C, H, W] -> the capsules' lengths float32 [N, K], below 1.

        In training a network with a decoder returns (lengths, capsules float32 [N, K, D]) for the objective.
        """
        self.decoder_dtype = autocast_dtype(images)
        capsules = self.capsules(images)
        lengths = _length(capsules).squeeze(2)
        return (lengths, capsules) if self.training and self.decoder is not None else lengths

    def capsules(self, images: Tensor) -> Tensor:
        """images float32 [N, C, H, W] -> the classes' capsules float32 [N, K, D]."""
        return self.routed(self.primary_vectors(self.first_maps(images)))

    def first_maps(self, images: Tensor) -> Tensor:
        """images [N, C, H, W] -> what the first convolution finds, channels-last [N, channels, H - 8, W - 8]."""
        return functional.relu(_convolved(images, self.convolution))

    def primary_vectors(self, maps: Tensor) -> Tensor:
        """Maps of ``first_maps`` -> the primary capsules before they are squashed [N, P, E]."""
        # Channels-last in memory, where the capsules of a position are neighbours: no copy.
        maps = _convolved(maps, self.primary).permute(0, 2, 3, 1)
        return maps.flatten(1).unflatten(1, (-1, self.settings.primary_dim))

    def routed(self, vectors: Tensor) -> Tensor:
        """Primary capsules before they are squashed [N, P, E] -> the classes' capsules float32 [N, K, D]."""
        primary = squash(vectors.float())
        votes = torch.matmul(primary.transpose(0, 1), self.weight)
        iterations, through = self.settings.routing_iterations, self.settings.routing_gradient == "all"
        return route(votes, self.settings.capsule_dim, iterations, through)

    def reconstruct(self, capsules: Tensor, mask: Tensor) -> Tensor:
        """Decode capsules float32 [N, K, D] where ``mask`` float32 [N, K] is 1 -> pixels 0 to 1, float32 [N, C H W]."""
        # Cached casts would be allocated in the memory of a CUDA graph.
        enabled = self.decoder_dtype is not None
        with torch.autocast(capsules.device.type, self.decoder_dtype, enabled, cache_enabled=False):
            return self.decoder((capsules * mask.unsqueeze(2)).flatten(1)).to(capsules.dtype)  # type: ignore[misc]


def autocast_dtype(tensor: Tensor) -> torch.dtype | None:
    """Return autocast's dtype on the device of ``tensor``; None where autocast is off."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def squash(vectors: Tensor) -> Tensor:
    """Shorten vectors [..., D] to a length below 1 and keep their direction (the paper's equation 1)."""
    squared = vectors.square().sum(dim=-1, keepdim=True)
    return vectors * (squared / (1 + squared) * (squared + TINY).rsqrt())


def route(votes: Tensor, dim: int, iterations: int, gradient_of_coupling: bool = False) -> Tensor:
    """Route votes [P, N, K D] by agreement (the paper's procedure 1) -> capsules float32 [N, K, D]."""
    by_image = votes.transpose(0, 1)
    constant = by_image if gradient_of_coupling else by_image.detach()
    classes = votes.shape[2] // dim
    with torch.autocast(votes.device.type, enabled=False):
        logits = torch.zeros(by_image.shape[:2] + (classes,), device=votes.device)
        for _ in range(iterations - 1):
            capsules = squash(_weighted_sum(constant, logits))
            logits = logits + _agreement(constant, capsules)
        return squash(_weighted_sum(by_image, logits))


def _weighted_sum(votes: Tensor, logits: Tensor) -> Tensor:
    """Sum votes [N, P, K D] over the primary capsules, weighted by the softmax of logits [N, P, K] -> [N, K, D].

    One product for each image weights the votes for all classes by the coupling of each, and the K that are wanted are
    kept: it reads the votes once, where K products would read a K-th each in small pieces.
    """
    coupling = logits.softmax(dim=2).to(votes.dtype)
    sums = torch.bmm(coupling.transpose(1, 2), votes).unflatten(2, (coupling.shape[2], -1))
    return sums.diagonal(dim1=1, dim2=2).transpose(1, 2).float()


def _agreement(votes: Tensor, capsules: Tensor) -> Tensor:
    """Return the products of votes [N, P, K D] with their class's capsule [N, K, D], float32 [N, P, K]."""
    classes = capsules.shape[1]
    own = torch.eye(classes, device=votes.device).unsqueeze(1)
    # [N, K D, K]: the capsule of a class meets the votes for it alone.
    blocks = (capsules.unsqueeze(3) * own).flatten(1, 2)
    return torch.bmm(votes, blocks.to(votes.dtype)).float()


def _convolved(maps: Tensor, convolution: nn.Conv2d) -> Tensor:
    """Apply ``convolution`` channels-last: weights are cast to autocast's dtype and put in order by one copy."""
    weight = convolution.weight.to(autocast_dtype(maps) or maps.dtype, memory_format=torch.channels_last)
    return functional.conv2d(maps, weight, convolution.bias, convolution.stride)


def _length(vectors: Tensor) -> Tensor:
    """Return the length of vectors [..., D] as [..., 1]."""
    return (vectors.square().sum(dim=-1, keepdim=True) + TINY).sqrt()


def _decoder(settings: Settings, classes: int, pixels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    width = classes * settings.capsule_dim
    for units in settings.decoder_units:
        layers += [nn.Linear(width, units), nn.ReLU()]
        width = units
    return nn.Sequential(*layers, nn.Linear(width, pixels), nn.Sigmoid())


def build(settings: Settings, description: dict[str, Any]) -> CapsuleNetwork:
    """Build the network for a prepared image data set (``description`` is its prepared.json).

    InputError for images that are too small for the two convolutions.
    """
    _, height, width, channels = description["arrays"]["images"]["shape"]
    if min(height, width) < SMALLEST_IMAGE:
        raise InputError(
            f"images of {height} x {width} pixels are too small for capsnet: it needs {SMALLEST_IMAGE} x "
            f"{SMALLEST_IMAGE}"
        )
    return CapsuleNetwork(settings, channels, height, width, len(description["classes"]))
