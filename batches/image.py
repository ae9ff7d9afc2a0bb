"""Collation of images: uint8 [n, H, W, C] in memory, float32 [n, C, H, W] for the network.

A pixel x becomes (x / 255 - mean) / deviation, by the mean and deviation of each channel over the training split. The
result is channels-last in memory.

Shape legend: n images of a batch, H x W pixels, C channels.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from storage.prepared import Prepared


class Collator:
    """Collates rows of prepared images for ``device``. ``ragged`` is for text and has no effect here."""

    def __init__(self, prepared: Prepared, device: torch.device, ragged: bool = False) -> None:
        self.prepared = prepared
        self.device = device
        self.mean, self.deviation = (
            torch.tensor(prepared.description[name], device=device).reshape(1, -1, 1, 1)
            for name in ("mean", "deviation")
        )

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """1 for each row, int64 [n]: all images have the same size."""
        return np.ones(len(rows), np.int64)

    def collate(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        """Collate ``rows`` (int [n]) on the CPU: images uint8 [n, H, W, C]."""
        return (torch.from_numpy(self.prepared.arrays["images"][rows]),)

    def finish(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Normalise images uint8 [n, H, W, C] on the device -> float32 [n, C, H, W]."""
        (images,) = tensors
        return ((images.permute(0, 3, 1, 2).float() / 255 - self.mean) / self.deviation,)

    def resident_bytes(self, rows: np.ndarray) -> int:
        """The device memory that ``resident`` takes for ``rows``."""
        return (int(rows.max()) + 1 - int(rows.min())) * math.prod(self.prepared.arrays["images"].shape[1:])

    def resident(self, rows: np.ndarray) -> "ResidentImages":
        """Copy the images of ``rows`` to the device."""
        return ResidentImages(self.prepared, rows, self.device)


class ResidentImages:
    """Images on a device as uint8, gathered by index for each batch."""

    def __init__(self, prepared: Prepared, rows: np.ndarray, device: torch.device) -> None:
        """Copy all rows from the first to the last of ``rows``."""
        self.first = int(rows.min())
        self.images = torch.tensor(prepared.arrays["images"][self.first : int(rows.max()) + 1], device=device)

    def batches(self, batches: Sequence[np.ndarray]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the images of each of ``batches`` (rows, int [n]), uint8 [n, H, W, C]."""
        order = torch.from_numpy(np.concatenate(batches) - self.first).to(self.images.device)
        for rows in order.split([len(rows) for rows in batches]):
            yield (self.images.index_select(0, rows),)
