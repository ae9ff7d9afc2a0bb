"""Collation of rows of one array: images, or any kind of data whose rows have one shape.

Shape legend: n rows of a batch.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from reread import kinds
from reread.batches.collation import upload
from reread.storage.arrays import Int64Array
from reread.storage.prepared import Prepared


class Collator:
    """Collates rows of the array that the kind's ``row_array`` names. ``ragged`` has no effect: rows have one shape."""

    def __init__(self, prepared: Prepared, device: torch.device, ragged: bool = False) -> None:
        self.device = device
        self.array = prepared.arrays[kinds.kind(prepared.kind).row_array]

    def sizes(self, rows: Int64Array) -> Int64Array:
        """Return 1 for each row, int64 [n]."""
        return np.ones(len(rows), np.int64)

    def collate(self, rows: Int64Array) -> tuple[Tensor, ...]:
        """Collate ``rows`` (int [n]) on the CPU: one tensor [n, ...] of the array's dtype."""
        return (torch.from_numpy(self.array[rows]),)

    def finish(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return collated tensors, copied to the device, as the network's inputs."""
        return tensors

    def resident_bytes(self, rows: Int64Array) -> int:
        """Return the device memory in bytes that ``resident`` takes for ``rows``."""
        return (int(rows.max()) + 1 - int(rows.min())) * math.prod(self.array.shape[1:]) * self.array.itemsize

    def resident(self, rows: Int64Array) -> "ResidentArray":
        """Copy ``rows`` to the device."""
        return ResidentArray(self.array, rows, self.device)


class ResidentArray:
    """Rows on a device, gathered by index for each batch."""

    def __init__(self, array: np.ndarray, rows: Int64Array, device: torch.device) -> None:
        """Copy all rows from the first to the last of ``rows``."""
        self.first = int(rows.min())
        self.rows = torch.tensor(array[self.first : int(rows.max()) + 1], device=device)

    def batches(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the rows of each of ``batches`` (int [n])."""
        order = upload(np.concatenate(batches) - self.first, self.rows.device)
        for rows in order.split([len(rows) for rows in batches]):
            yield (self.rows.index_select(0, rows),)
