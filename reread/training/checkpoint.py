"""Checkpoints that survive a kill, a power cut and a damaged file: folders published by rename, one an epoch.

checkpoints/EPOCH/
    training.safetensors  network, its average where there is one, optimiser and, as JSON in its header, the run's state
    best.safetensors      the network alone, or its average, of the best epoch so far: a hard link while it is the same
    digests.json          the sha256 of both, written last

Two are kept. Training resumes from the newest one whose digests are right, else from the beginning, and ends with the
same weights. No generator's state is kept: weights, order and dropout of an epoch are functions of (seed, epoch).

While a GPU trains, a thread writes copies of the tensors. It uses CUDA only to wait for them.
"""

import json
import os
import shutil
import sys
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

from reread.storage.digests import Damaged, digested_directory, read_digests, refuse_damaged, refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.files import fsync_path, remove_directory, write_text
from reread.storage.run_folder import CHECKPOINT, CHECKPOINTS, HISTORY, WEIGHTS
from reread.training.average import Average
from reread.training.state import State

# Bytes to which the copies of a snapshot are aligned.
ALIGNMENT = 64
KEPT = 2


class Writer:
    """Does the work that it is given, in order: in a thread, one piece at a time, or, not ``background``, at once."""

    def __init__(self, background: bool = False) -> None:
        self._pool = ThreadPoolExecutor(1, "checkpoint") if background else None
        self._pending: Future[None] | None = None

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
    """The checkpoints of a run in ``directory``: the objects are read from and written to in place.

    writes: whether resuming may write and print; one of several processes alone does. writer: of what is saved.
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
        """Publish the history, then the state after an epoch and the best network so far; then ``announce``.

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
        texts = (json.dumps(header), state.history_csv())
        self.writer.submit(partial(self._write, state.epoch, tensors, *texts, best, announce))

    def _write(
        self,
        epoch: int,
        tensors: dict[str, Tensor],
        header: str,
        history: str,
        best: bool,
        announce: Callable[[], None],
    ) -> None:
        self._snapshot.wait()
        previous = _folder(self.directory, epoch - 1)
        try:
            write_text(self.directory / HISTORY, history)
            # The digest as well: one computed again would hide that the file was damaged since.
            known = {} if best else {WEIGHTS: read_digests(previous)[WEIGHTS]}
            with digested_directory(_folder(self.directory, epoch), replace=True, known=known) as working:
                # One entry alone in the header: safetensors writes several in no fixed order.
                _save(tensors, working / CHECKPOINT, {"run": header})
                if best:
                    _save(_under("average." if self.average.decay else "network.", tensors), working / WEIGHTS, None)
                else:
                    _link(previous / WEIGHTS, working / WEIGHTS)
            self._remove_others(epoch)
        except (OSError, SafetensorError, Damaged) as error:
            raise InputError(
                f"the checkpoint in {self.directory} cannot be written ({error}): make room, then run again"
            ) from None
        announce()

    def resume(self) -> State:
        """Load the newest checkpoint that is whole into network, average, optimiser and scaler; return its state.

        Return a new state where there is none. One line on stderr names a damaged checkpoint.
        """
        damaged = None
        for folder in reversed(checkpoints(self.directory)):
            try:
                refuse_damaged_folder(folder)
                header, tensors = _read(folder / CHECKPOINT)
            except (Damaged, OSError, SafetensorError, KeyError, ValueError) as error:
                damaged = damaged or error
                continue
            state = self._load(header, tensors)
            self._resumed(state, damaged)
            return state
        self._resumed(State(), damaged)
        return State()

    def _load(self, header: dict[str, Any], tensors: dict[str, Tensor]) -> State:
        self.network.load_state_dict(_under("network.", tensors))
        if self.average.decay:
            self.average.network.load_state_dict(_under("average.", tensors))
        saved = {
            int(index): _under(f"optimiser.{index}.", tensors) | values
            for index, values in header["optimiser"]["state"].items()
        }
        self.optimiser.load_state_dict({"state": saved, "param_groups": header["optimiser"]["groups"]})
        _lay_out_as_parameters(self.optimiser)
        self.scaler.load_state_dict(header["scaler"])
        return State.from_json(header["state"])

    def _resumed(self, state: State, damaged: Exception | None) -> None:
        """Name a damaged checkpoint; make history.csv that of ``state``; remove what a killed process left."""
        if not self.writes:
            return
        if damaged:
            goes_on = f"resumes after epoch {state.epoch}" if state.epoch else "starts from the beginning"
            print(f"warning: {damaged}: training {goes_on}", file=sys.stderr, flush=True)
        for unfinished in self.directory.glob(f"{CHECKPOINTS}/.*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        history = self.directory / HISTORY
        if state.epoch and (not history.is_file() or history.read_bytes() != state.history_csv().encode()):
            write_text(history, state.history_csv())

    def _remove_others(self, epoch: int) -> None:
        """Remove all checkpoints but those of ``epoch`` and the ones before it that are kept.

        A later one was damaged, or training had not resumed after an earlier epoch.
        """
        folders = checkpoints(self.directory)
        kept = [folder for folder in folders if int(folder.name) <= epoch][-KEPT:]
        for folder in folders:
            if folder not in kept:
                remove_directory(folder)


def checkpoints(run_directory: Path) -> list[Path]:
    """Return the checkpoints of a run, damaged or not, the oldest first."""
    folders = (run_directory / CHECKPOINTS).glob("*")
    return sorted(folder for folder in folders if folder.name.isascii() and folder.name.isdecimal())


def publish_best_weights(run_directory: Path) -> None:
    """Copy the best weights of the newest checkpoint to the run's folder. InputError where they are damaged."""
    newest, path = checkpoints(run_directory)[-1], run_directory / WEIGHTS
    unfinished = path.with_name(f".{path.name}.partial")
    # A copy and no link, so that not both are damaged at once.
    shutil.copyfile(newest / WEIGHTS, unfinished)
    try:
        refuse_damaged(unfinished, read_digests(newest)[WEIGHTS])
    except Damaged as error:
        raise InputError(f"{error}: run again to resume from the last complete checkpoint") from None
    fsync_path(unfinished)
    os.replace(unfinished, path)
    fsync_path(run_directory)


def _folder(run_directory: Path, epoch: int) -> Path:
    return run_directory / CHECKPOINTS / f"{epoch:06}"


def _lay_out_as_parameters(optimiser: torch.optim.Optimizer) -> None:
    """Give each buffer of the optimiser the strides of its parameter, as before the checkpoint.

    A file keeps no strides, and a fused optimiser on a GPU refuses buffers whose strides differ from the parameter's.
    """
    for parameter, values in optimiser.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.stride() != parameter.stride():
                values[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["run"])
        return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _save(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    """Write tensors; a weight that a network has under several names is written under each, as of a GPU's copies."""
    saved: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        # safetensors refuses tensors that share memory.
        saved[name] = tensor.clone() if tensor.data_ptr() in seen else tensor
        seen.add(tensor.data_ptr())
    save_file(saved, path, metadata)
    os.chmod(path, 0o644)


def _link(source: Path, destination: Path) -> None:
    """Link a file, or copy it where the file system has no hard links."""
    try:
        os.link(source, destination)
    except OSError:
        shutil.copyfile(source, destination)


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
