"""Collation of images: uint8 [n, H, W, C] in memory, float32 [n, C, H, W] for the network.

A pixel x becomes (x / 255 - mean) / deviation, by the mean and deviation of each channel over the training split. The
result is channels-last in memory.

Shape legend: n images of a batch, H x W pixels, C channels.
"""

import torch
from torch import Tensor

from reread.batches import array
from reread.storage.prepared import Prepared


class Collator(array.Collator):
    """Collates rows of prepared images for ``device``: uint8 until they are on it."""

    def __init__(self, prepared: Prepared, device: torch.device, ragged: bool = False) -> None:
        super().__init__(prepared, device, ragged)
        self.mean, self.deviation = (
            torch.tensor(prepared.description[name], device=device).reshape(1, -1, 1, 1)
            for name in ("mean", "deviation")
        )

    def finish(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Normalise images uint8 [n, H, W, C] on the device -> float32 [n, C, H, W]."""
        (images,) = tensors
        return ((images.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.deviation,)
