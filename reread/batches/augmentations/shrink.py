"""Read images of fewer pixels in the first epochs, which are then faster.

Source: Howard, in Coleman et al., DAWNBench, 2017, and Tan and Le, EfficientNetV2, ICML 2021, section 4.2 (progressive
learning). For networks that read images of any size. A GPU captures one more CUDA graph for each size.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional

from reread.batches.augmentations import Rows
from reread.storage.errors import InputError
from reread.storage.settings import Range

BY_ROW = True


@dataclass(frozen=True)
class Settings:
    """The settings of this augmentation.

    pixels: of each side in the stages that come first; epochs: how many each of these stages has. Afterwards images are
    as large as they are.
    """

    pixels: tuple[Annotated[int, Range(1, 4096)], ...] = (24,)
    epochs: tuple[Annotated[int, Range(1, 100_000)], ...] = (10,)

    def __post_init__(self) -> None:
        if len(self.pixels) != len(self.epochs):
            raise InputError(
                f"pixels are {list(self.pixels)} and epochs {list(self.epochs)}: give each stage one of both"
            )


def apply(images: Tensor, rows: Rows, settings: Settings) -> Tensor:
    """Shrink ``images`` [n, C, H, W] to the size of the epoch's stage; none is enlarged."""
    past = 0
    for pixels, epochs in zip(settings.pixels, settings.epochs, strict=True):
        past += epochs
        if rows.epoch <= past:
            size = [min(side, pixels) for side in images.shape[2:]]
            small = functional.interpolate(images, size, mode="bilinear", antialias=True, align_corners=False)
            return small.contiguous(memory_format=torch.channels_last)
    return images
