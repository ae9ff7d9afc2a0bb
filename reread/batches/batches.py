"""The batches of an epoch, ready on the device.

On a GPU whole splits are copied to its memory where they fit, and batches are gathered there: the host then only
launches the step, and waits for no copy. The next epoch is ordered while the GPU runs the last steps of this one.
Larger splits are collated in a thread and copied from pinned memory on a stream of their own, two batches ahead. On a
CPU a batch is collated on request. All three give the same values.
"""

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reread.batches import augmentations, order
from reread.batches.collation import labels, make_collator, to_device, upload
from reread.storage.arrays import Int64Array
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared

# The share of a GPU's free memory that one split may take.
RESIDENT_SHARE = 0.25
PREFETCHED = 2

LoadingMode = Literal["resident", "prefetched", "collated"]
Loaded = tuple[tuple[Tensor, ...], Tensor | None]
# The rows of each batch, this process's share of them, and the loaded batches.
Epoch = tuple[list[np.ndarray], list[np.ndarray], Iterator[Loaded]]


@dataclass(frozen=True)
class Batch:
    """One step's data. inputs: as the network takes them; target: int64 [n] or float32 [n, K].

    rows: how many rows these are; global_rows: how many the batch has over all processes.
    """

    inputs: tuple[Tensor, ...]
    target: Tensor
    rows: int
    global_rows: int


class Loader:
    """Loads given lists of rows, each of which becomes a batch.

    way: ``resident`` in the device's memory, ``prefetched``, or ``collated`` on request. By default a CPU collates, and
    on a GPU the split is resident where that takes at most a quarter of the free memory, else prefetched.
    """

    def __init__(
        self,
        prepared: Prepared,
        rows: Int64Array,
        device: torch.device,
        ragged: bool = False,
        way: LoadingMode | None = None,
        labelled: bool = True,
    ) -> None:
        """rows: all that will ever be loaded, int [N], at least one; labelled: whether batches have a target."""
        self.prepared = prepared
        self.device = device
        self.collator = make_collator(prepared, device, ragged)
        self.labelled = labelled
        self.way = way or self._choose(rows)
        if self.way == "resident":
            self.first = int(rows.min())
            self.labels = labels(prepared, slice(self.first, int(rows.max()) + 1), device) if labelled else None
            self.resident = self.collator.resident(rows)

    def load(self, batches: Sequence[Int64Array]) -> Iterator[Loaded]:
        """Yield inputs and target (None unless labelled) of each of ``batches`` (rows, int [n])."""
        if not batches:
            return
        loaded = {"resident": self._resident, "prefetched": self._prefetched, "collated": self._collated}[self.way]
        tensors: Any  # whose last is the target, where there is one
        for tensors in loaded(batches):
            *tensors, target = tensors if self.labelled else (*tensors, None)
            yield self.collator.finish(tuple(tensors)), target

    def _choose(self, rows: Int64Array) -> LoadingMode:
        if self.device.type != "cuda":
            return "collated"
        free, _ = torch.cuda.mem_get_info(self.device)
        return "resident" if self.collator.resident_bytes(rows) <= RESIDENT_SHARE * free else "prefetched"

    def _collate(self, rows: Int64Array) -> tuple[Tensor, ...]:
        tensors = self.collator.collate(rows)
        return (*tensors, labels(self.prepared, rows)) if self.labelled else tensors

    def _collated(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        for rows in batches:
            yield to_device(self._collate(rows), self.device)

    def _resident(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        if self.labels is None:
            yield from self.resident.batches(batches)
            return
        places = upload(np.concatenate(batches) - self.first, self.device)
        targets = self.labels.index_select(0, places).split([len(rows) for rows in batches])
        for tensors, target in zip(self.resident.batches(batches), targets, strict=True):
            yield *tensors, target

    def _prefetched(self, batches: Sequence[Int64Array]) -> Iterator[tuple[Tensor, ...]]:
        """Collate in a thread that does not call CUDA: a second thread's call would invalidate a graph's capture."""
        gpu = self.device.type == "cuda"
        stream = torch.cuda.Stream(self.device) if gpu else None
        copied: deque[tuple[tuple[Tensor, ...], Any]] = deque()
        with ThreadPoolExecutor(1) as pool:
            waiting = deque(pool.submit(self._collate, rows) for rows in batches[: 2 * PREFETCHED])
            upcoming = iter(batches[2 * PREFETCHED :])
            try:
                while waiting or copied:
                    while waiting and len(copied) <= PREFETCHED:
                        tensors = waiting.popleft().result()
                        if (rows := next(upcoming, None)) is not None:
                            waiting.append(pool.submit(self._collate, rows))
                        copied.append(self._copy(tensors, stream))
                    tensors, event = copied.popleft()
                    if gpu:
                        current = torch.cuda.current_stream(self.device)
                        current.wait_event(event)
                        for tensor in tensors:
                            tensor.record_stream(current)
                    yield tensors
            finally:
                pool.shutdown(cancel_futures=True)

    def _copy(self, tensors: tuple[Tensor, ...], stream: Any) -> tuple[tuple[Tensor, ...], Any]:
        """Begin to copy ``tensors`` to the device; the event marks the end of the copy."""
        with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
            pinned = tuple(tensor.pin_memory() for tensor in tensors) if stream else tensors
            copies = to_device(pinned, self.device, non_blocking=True)
            return copies, stream.record_event() if stream else None


class Batches:
    """The batches of a training split, epoch by epoch: a function of (seed, epoch) alone.

    Each of several processes has a share: rows rank, rank + world_size, ... of every batch. Augmentation is drawn for
    the whole batch, so that all shares together are the batch of one process.
    """

    def __init__(
        self,
        prepared: Prepared,
        rows: Int64Array,
        device: torch.device | str = "cpu",
        batch_size: int = 64,
        seed: int = 0,
        *,
        ragged: bool = False,
        augmentation: Sequence[Mapping[str, Any]] = (),
        rank: int = 0,
        world_size: int = 1,
        way: LoadingMode | None = None,
    ) -> None:
        """rows: int [N]; batch_size: over all processes; augmentation: settings, each with its ``name``.

        InputError where a batch has fewer rows than there are processes, and for an augmentation that does not fit.
        """
        self.rows = rows
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self.device = torch.device(device)
        if len(rows) // len(self) < world_size:
            raise InputError(
                f"batch_size is {batch_size}, and {len(rows)} rows in batches of that size leave less than one row "
                f"for each of {world_size} processes: raise batch_size or start fewer processes"
            )
        self.augment = augmentations.build(augmentation, prepared.kind)
        self.loader = Loader(prepared, rows, self.device, ragged, way)
        self.sizes = self.loader.collator.sizes(rows)
        self._next: tuple[int, Epoch] | None = None

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return -(-len(self.rows) // self.batch_size)

    def epoch(self, epoch: int) -> Iterator[Batch]:
        """Yield the batches of ``epoch`` (1, 2, ...), this process's share of each."""
        ready, self._next = self._next, None
        batches, shares, loaded = ready[1] if ready and ready[0] == epoch else self._begin(epoch)
        generator: Any = augmentations.make_generator(self.seed, epoch, self.device) if self.augment else None
        numbers = self._numbers(batches)
        target: Any  # the loader is labelled
        for (inputs, target), rows, share in zip(loaded, batches, shares, strict=True):
            if self.augment:
                of_batch = augmentations.Rows(next(numbers), self.seed, epoch) if self.augment.by_row else None
                images, target = self.augment(inputs[0], target, generator, of_batch)
                inputs, target = (images[self.rank :: self.world_size],), target[self.rank :: self.world_size]
            yield Batch(inputs, target, len(share), len(rows))
        if self.device.type == "cuda" and self.loader.way == "resident":
            self._next = epoch + 1, self._begin(epoch + 1)

    def _numbers(self, batches: list[Int64Array]) -> Iterator[Tensor]:
        """Return the row numbers of each batch, on the device, where an augmentation uses them."""
        if not self.augment or not self.augment.by_row:
            return iter(())
        numbers = upload(np.concatenate(batches).astype(np.int64, copy=False), self.device)
        return iter(numbers.split([len(rows) for rows in batches]))

    def _begin(self, epoch: int) -> Epoch:
        """Order the rows of ``epoch`` and load its first batch; loading it also lays out the others."""
        batches = order.batches(self.rows, self.sizes, self.batch_size, self.seed, epoch)
        shares = [rows[self.rank :: self.world_size] for rows in batches]
        loaded = self.loader.load(batches if self.augment else shares)
        return batches, shares, itertools.chain([next(loaded)], loaded)
