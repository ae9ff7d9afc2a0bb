"""Shift each image by up to some pixels in both directions: the same as a random crop of the padded image.

Sources: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2 (4 pixels on CIFAR-10), which
Huang et al., Densely Connected Convolutional Networks, CVPR 2017, section 4.1, follow. ``zeros`` pads with zeros after
normalisation, as their code does: with the mean of the training split. ``reflect`` pads with the image's mirrored edge.
``darkest`` pads each channel with the image's lowest value: digits on black stay on black.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor
from torch.nn import functional

from reread.storage.errors import InputError
from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this augmentation.

    pixels: the largest shift in each direction; padding: what moves in at the edges.
    """

    pixels: Annotated[int, Range(0, 1024)] = 4
    padding: Literal["zeros", "reflect", "darkest"] = "zeros"


def apply(images: Tensor, generator: torch.Generator, settings: Settings) -> Tensor:
    """Shift ``images`` [n, C, H, W]; InputError where ``reflect`` needs more pixels than an image has."""
    count, _, height, width = images.shape
    pixels = settings.pixels
    if settings.padding == "reflect" and pixels >= min(height, width):
        raise InputError(f"shift.pixels is {pixels}: images of {height} x {width} pixels reflect fewer")
    padded = _padded(images, settings)
    # How far the crop's corner is from the padded image's; the image itself is at (pixels, pixels).
    corner = torch.randint(0, 2 * pixels + 1, (2, count, 1), generator=generator, device=images.device)
    row = corner[0] + torch.arange(height, device=images.device)
    column = corner[1] + torch.arange(width, device=images.device)
    image = torch.arange(count, device=images.device).view(-1, 1, 1)
    return padded.permute(0, 2, 3, 1)[image, row.unsqueeze(2), column.unsqueeze(1)].permute(0, 3, 1, 2)


def _padded(images: Tensor, settings: Settings) -> Tensor:
    """Return ``images`` [n, C, H, W] with ``pixels`` more at each edge."""
    sides = (settings.pixels,) * 4
    if settings.padding != "darkest":
        return functional.pad(images, sides, {"zeros": "constant", "reflect": "reflect"}[settings.padding])
    inside = functional.pad(torch.ones_like(images[:1, :1], dtype=torch.bool), sides)
    return torch.where(inside, functional.pad(images, sides), images.amin(dim=(2, 3), keepdim=True))
