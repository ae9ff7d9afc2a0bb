"""Mirror images left to right, each with a probability.

Source: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this augmentation.

    probability: of each image to be mirrored.
    """

    probability: Annotated[float, Range(0, 1)] = 0.5


def apply(images: Tensor, generator: torch.Generator, settings: Settings) -> Tensor:
    """Mirror some of ``images`` [n, C, H, W]."""
    mirrored = torch.rand(len(images), generator=generator, device=images.device) < settings.probability
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(3), images)
