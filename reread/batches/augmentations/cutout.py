"""Set a square of each image to zero, which after normalisation is the mean of the training split.

Source: DeVries and Taylor, Improved Regularization of Convolutional Neural Networks with Cutout, arXiv 1708.04552,
section 3.1: the centre is any pixel, so that the square may extend beyond the image (16 pixels on CIFAR-10).
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this augmentation.

    size: pixels of the square's side.
    """

    size: Annotated[int, Range(1, 1024)] = 16


def apply(images: Tensor, generator: torch.Generator, settings: Settings) -> Tensor:
    """Cut a square out of each of ``images`` [n, C, H, W]."""
    count, _, height, width = images.shape
    inside = []
    for pixels in (height, width):
        centre = torch.randint(0, pixels, (count, 1), generator=generator, device=images.device)
        first = centre - settings.size // 2
        pixel = torch.arange(pixels, device=images.device)
        inside.append((pixel >= first) & (pixel < first + settings.size))
    return images.masked_fill((inside[0].unsqueeze(2) & inside[1].unsqueeze(1)).unsqueeze(1), 0)
