"""Inputs and labels of rows. Each kind of data names its own collator (reread/kinds/KIND.py)."""

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from reread import goals, kinds
from reread.storage.arrays import Int64Array
from reread.storage.prepared import Prepared


class Resident(Protocol):
    """Rows in the device's memory."""

    def batches(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        """Yield what ``KindCollator.collate`` gives for each of ``batches``, on the device."""


class KindCollator(Protocol):
    """How rows of a kind of data become a network's inputs: ``finish(collate(rows) on the device)``."""

    def sizes(self, rows: Int64Array) -> Int64Array: ...

    def collate(self, rows: Int64Array) -> tuple[Tensor, ...]: ...

    def finish(self, tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]: ...

    def resident_bytes(self, rows: Int64Array) -> int: ...

    def resident(self, rows: Int64Array) -> Resident: ...


def make_collator(prepared: Prepared, device: torch.device | str = "cpu", ragged: bool = False) -> KindCollator:
    """Make the collator of ``prepared``'s kind of data; ``ragged``: text without padding."""
    return kinds.load(kinds.kind(prepared.kind).collator)(prepared, torch.device(device), ragged)


def reads_ragged(network: nn.Module, device: torch.device) -> bool:
    """Return whether ``network`` reads text without padding: on a GPU, where its ``reads_ragged`` is true."""
    return device.type == "cuda" and getattr(network, "reads_ragged", False)


def inputs(
    prepared: Prepared, rows: Int64Array, device: torch.device | str = "cpu", ragged: bool = False
) -> tuple[Tensor, ...]:
    """Return the network's inputs for ``rows`` (int [n]), as the file of the kind of data documents them."""
    collator = make_collator(prepared, device, ragged)
    return collator.finish(to_device(collator.collate(rows), torch.device(device)))


def sizes(prepared: Prepared, rows: Int64Array) -> Int64Array:
    """Return the cost of reading each row, int64 [n]: its words, or 1 for an image."""
    return make_collator(prepared).sizes(rows)


def labels(prepared: Prepared, rows: Int64Array | slice, device: torch.device | str = "cpu") -> Tensor:
    """Return the targets of ``rows``: int64 [n] (single-label), float32 [n, K] of 0 and 1 (multi-label), or as they are
    stored."""
    if goals.beyond_labels(prepared.task):
        return torch.from_numpy(np.array(prepared.labels[rows])).to(device)
    dtype = torch.float32 if prepared.task == "multi-label" else torch.int64
    return torch.from_numpy(np.array(prepared.labels[rows])).to(device, dtype)


def upload(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy ``array`` to ``device``; the host does not wait for a GPU."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def to_device(tensors: tuple[Tensor, ...], device: torch.device, **how: Any) -> tuple[Tensor, ...]:
    return tuple(tensor.to(device, **how) for tensor in tensors)
