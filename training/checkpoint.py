"""Checkpoints that outlive kill -9: safetensors, each published by rename at the end of an epoch.

last.safetensors   network, its average where there is one, optimiser and, as JSON in its header, the run's state: one
                   file, so that they always agree.
best.safetensors   the network alone, or its average, of the best epoch.

No generator's state is kept: weights, order and dropout of an epoch are functions of (seed, epoch). history.csv is
written first, so that no run resumes after an epoch that it lacks, then ``last``, then ``best``. A kill between the
last two leaves a ``last`` that is the best, from which resuming writes ``best`` again.

While a GPU trains, a thread writes copies of the tensors. It uses CUDA only to wait for them.
"""

import json
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from storage.errors import InputError
from storage.files import fsync_path, write_text
from storage.run_folder import CHECKPOINT, HISTORY, WEIGHTS
from training.average import Average
from training.state import State

# Bytes to which the copies of a snapshot are aligned.
ALIGNMENT = 64


class Writer:
    """Does the work that it is given, in order: in a thread, one piece at a time, or, not ``background``, at once."""

    def __init__(self, background: bool = False) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future | None = None

    @property
    def background(self) -> bool:
        return self._pool is not None

    def submit(self, work: Callable[[], None]) -> None:
        """Begin ``work`` once the last piece is done; raise the error of that one, or of this one if done at once."""
        self.wait()
        if self._pool:
            self._pending = self._pool.submit(work)
        else:
            work()

    def wait(self) -> None:
        """Wait until all work is done; raise its error."""
        if self._pending:
            self._pending.result()
            self._pending = None

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Finish all work at the end of the block, also where it ends by an error, which is then the one raised."""
        try:
            yield
            self.wait()
        finally:
            if self._pool:
                self._pool.shutdown()


class Snapshot:
    """Copies of tensors in one piece of the CPU's memory. It is pinned for a GPU, which trains on meanwhile."""

    def __init__(self) -> None:
        self._copies: dict[str, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    def take(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return copies of ``tensors``, which hold once ``wait`` returns and until the next are taken."""
        gpu = any(tensor.is_cuda for tensor in tensors.values())
        if _layout(tensors) != _layout(self._copies):
            self._copies = _allocate(tensors, pinned=gpu)
        for name, tensor in tensors.items():
            self._copies[name].copy_(tensor.detach(), non_blocking=True)
        if gpu:
            self._copied = torch.cuda.Event(blocking=True)
            self._copied.record()
        return self._copies

    def wait(self) -> None:
        """Wait until the GPU has copied."""
        if self._copied:
            # A thread begins with the first GPU as its own.
            with torch.cuda.device(self._copied.device):
                self._copied.synchronize()


@dataclass(frozen=True)
class Checkpoint:
    """What is kept of a run in ``directory``: the objects are read from and written to in place.

    writes: whether resuming may write; one of several processes alone does. writer: of what is saved.
    """

    directory: Path
    network: nn.Module
    average: Average
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    writes: bool = True
    writer: Writer = field(default_factory=Writer)
    _snapshot: Snapshot = field(default_factory=Snapshot)

    def save(self, state: State, announce: Callable[[], None] = lambda: None) -> None:
        """Publish the history, the end of an epoch, and the best network where this epoch's is it; then ``announce``.

        InputError where a file cannot be written. With a writer in the background this returns before they are, and
        ``announce`` is called in its thread; an error is raised by the next ``save`` or at the end.
        """
        # The copies that are being written must stay as they are.
        self.writer.wait()
        tensors = _prefixed("network.", self.network.state_dict())
        if self.average.decay:
            tensors |= _prefixed("average.", self.average.network.state_dict())
        optimiser = self.optimiser.state_dict()
        others = {}
        for index, values in optimiser["state"].items():
            tensors |= _prefixed(f"optimiser.{index}.", _tensors(values))
            others[index] = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        header = {
            "state": state.as_json(),
            "scaler": self.scaler.state_dict(),
            "optimiser": {"state": others, "groups": optimiser["param_groups"]},
        }
        if self.writer.background:
            tensors = self._snapshot.take(tensors)
        best = state.best_epoch == state.epoch
        self.writer.submit(partial(self._write, tensors, json.dumps(header), state.history_csv(), best, announce))

    def _write(
        self, tensors: dict[str, Tensor], header: str, history: str, best: bool, announce: Callable[[], None]
    ) -> None:
        self._snapshot.wait()
        try:
            write_text(self.directory / HISTORY, history)
            # One entry alone in the header: safetensors writes several in no fixed order.
            _publish(tensors, self.directory / CHECKPOINT, {"run": header})
            if best:
                kept = _under("average." if self.average.decay else "network.", tensors)
                _publish(kept, self.directory / WEIGHTS, None)
        except (OSError, SafetensorError) as error:
            raise InputError(
                f"the checkpoint in {self.directory} cannot be written ({error}): make room, then run again"
            ) from None
        announce()

    def resume(self) -> State:
        """Load the last whole epoch into network, average, optimiser and scaler; a fresh state where there is none."""
        path = self.directory / CHECKPOINT
        if not path.is_file():
            return State()
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {})["run"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError) as error:
            raise InputError(f"{path} is not a whole checkpoint ({error}): remove it to train anew") from None
        self.network.load_state_dict(_under("network.", tensors))
        if self.average.decay:
            self.average.network.load_state_dict(_under("average.", tensors))
        saved = {
            int(index): _under(f"optimiser.{index}.", tensors) | values
            for index, values in header["optimiser"]["state"].items()
        }
        self.optimiser.load_state_dict({"state": saved, "param_groups": header["optimiser"]["groups"]})
        self.scaler.load_state_dict(header["scaler"])
        state = State.from_json(header["state"])
        if self.writes and state.best_epoch == state.epoch:
            _publish(_prefixed("", self.average.network.state_dict()), self.directory / WEIGHTS, None)
        return state


def _publish(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    """Write ``tensors`` to ``path`` by rename, flushed to disk."""
    unfinished = path.with_name(f".{path.name}.partial")
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, unfinished, metadata)
    os.chmod(unfinished, 0o644)
    fsync_path(unfinished)
    os.replace(unfinished, path)
    fsync_path(path.parent)


def _layout(tensors: dict[str, Tensor]) -> list[tuple[str, torch.Size, torch.dtype]]:
    return [(name, tensor.shape, tensor.dtype) for name, tensor in tensors.items()]


def _allocate(tensors: dict[str, Tensor], pinned: bool) -> dict[str, Tensor]:
    """Return an empty tensor of the CPU for each of ``tensors``, all in one piece of memory."""
    rooms = [-(-tensor.nbytes // ALIGNMENT) * ALIGNMENT for tensor in tensors.values()]
    pieces = torch.empty(sum(rooms), dtype=torch.uint8, pin_memory=pinned).split(rooms)
    return {
        name: piece[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        for (name, tensor), piece in zip(tensors.items(), pieces, strict=True)
    }


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _tensors(values: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
