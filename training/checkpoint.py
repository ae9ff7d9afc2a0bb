"""Checkpoints that outlive kill -9: safetensors, each published by rename at the end of an epoch.

last.safetensors   network, its average where there is one, optimiser and, as JSON in its header, the run's state: one
                   file, so that they always agree.
best.safetensors   the network alone, or its average, of the best epoch.

No generator's state is kept: weights, order and dropout of an epoch are functions of (seed, epoch). ``last`` is written
before ``best``; a kill between the two leaves a ``last`` that is the best, from which resuming writes ``best`` again.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from storage.errors import InputError
from training.average import Average
from training.state import State

BEST = "best.safetensors"
LAST = "last.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """What is kept of a run in ``directory``: the objects are read from and written to in place.

    writes: whether resuming may write; one of several processes alone does.
    """

    directory: Path
    network: nn.Module
    average: Average
    optimiser: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    writes: bool = True

    def save(self, state: State) -> None:
        """Publish the end of an epoch, and the best network where this epoch's is it."""
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
        # One entry alone in the header: safetensors writes several in no fixed order.
        _publish(tensors, self.directory / LAST, {"run": json.dumps(header)})
        if state.best_epoch == state.epoch:
            self._save_best()

    def resume(self) -> State:
        """Load the last whole epoch into network, average, optimiser and scaler; a fresh state where there is none."""
        path = self.directory / LAST
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
            self._save_best()
        return state

    def _save_best(self) -> None:
        _publish(_prefixed("", self.average.network.state_dict()), self.directory / BEST, None)


def _publish(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None) -> None:
    partial = path.with_name(f".{path.name}.partial")
    save_file(tensors, partial, metadata)
    os.chmod(partial, 0o644)
    os.replace(partial, path)


def _prefixed(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors on the CPU, each under ``prefix`` and its name."""
    return {prefix + name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _tensors(values: dict[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in values.items() if isinstance(value, Tensor)}


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
