"""Seconds to an accuracy on CIFAR-10's test images: ``python -m benchmarks.speed_record RECIPE``, on a GPU.

python -m benchmarks.speed_record 94 --prepared prepared/KEY            30 seeds
python -m benchmarks.speed_record 96 --prepared prepared/KEY            8 seeds
python -m benchmarks.speed_record 94 --prepared prepared/KEY --training '{"learning_rate": 0.02}'    another recipe
python -m benchmarks.speed_record 94 --prepared prepared/KEY --network '{"activation": {"name": "swish_beta"}}'

The clock runs from the prepared arrays on disk to the accuracy: it counts the weights' drawing, the copy of all images
to the GPU, the whitening, training on all 50,000 training images, and the prediction of the 10,000 test images. It does
not count opening and checking the arrays, and one warm-up before the first seed, a whole run: CUDA starts, cuDNN
chooses its algorithms, and CUDA graphs are captured.

Training is by the same Batches, Step, Schedule and Lookahead as reread/training/loop.py, without its validation and
checkpoints. Nothing is chosen by test images: a recipe has a fixed number of epochs, and its settings were chosen on
validation (``--validation`` trains on the training split alone and reads the validation split instead). Before test
images are read the ledger gets an entry; without results/ it is in FILE.test-reads.jsonl beside ``--json FILE``, from
where `reread ledger --add` brings it home.
"""

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from cuda_ext import bench
from models.layers import kernels, parameter_count
from models.layers.initialisation import init_from_data
from models.objectives import make_objective
from reread.batches.batches import Batches
from reread.batches.inference import Predictor
from reread.storage.errors import InputError, command, refuse_unknown
from reread.storage.files import content_key, write_json
from reread.storage.git import checkout
from reread.storage.ledger import LEDGER, open_test_split, version_of
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.settings import from_json
from reread.training.average import Average
from reread.training.device import configure
from reread.training.lookahead import Lookahead
from reread.training.loop import seed_epoch
from reread.training.optimisers import make_optimiser
from reread.training.schedules import Schedule
from reread.training.settings import Settings
from reread.training.step import Step
from reread.verdicts.statistics import mean_interval


@dataclass(frozen=True)
class Recipe:
    """A network with its training; seeds: how many runs the mean is of."""

    model: str
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    seeds: int = 30

    def changed(self, network: Mapping[str, Any], training: Mapping[str, Any]) -> "Recipe":
        """Return the recipe with other values of some settings."""
        return replace(self, network={**self.network, **network}, training={**self.training, **training})


FLIPS = {"name": "alternating_flip"}
# What the recipes of fastnet share. Muon's momentum is that of Jordan's airbench94_muon. AdamW updates the norms'
# biases, for which 64 is too much.
FASTNET_NETWORK = {"views": "mirrored_shifted", "norm_lr_scale": 2.0}
FASTNET: dict[str, Any] = {
    "optimizer": {"name": "muon", "momentum": 0.6, "weight_decay": 1.0},
    "learning_rate": 0.025,
    "batch_size": 2000,
    "objective": {"name": "classification", "label_smoothing": 0.2},
    "max_grad_norm": 0,
    "amp_validation": True,
    "deterministic": False,
}
RECIPES = {
    "94": Recipe(
        "fastnet",
        FASTNET_NETWORK,
        FASTNET
        | {
            "schedule": {"name": "one_cycle", "rise": 0.02, "start": 0.2, "end": 0.0},
            "augmentation": [
                FLIPS,
                {"name": "shift", "pixels": 2, "padding": "reflect"},
                {"name": "shrink", "pixels": [24], "epochs": [4]},
            ],
            "max_epochs": 10,
        },
    ),
    # The network, the schedule and the lookahead are those of airbench96 (Jordan, arXiv 2404.00498).
    "96": Recipe(
        "fastnet",
        FASTNET_NETWORK | {"widths": [128, 512, 512], "convolutions": 3},
        FASTNET
        | {
            "schedule": {"name": "one_cycle", "rise": 0.23, "start": 0.2, "end": 0.07},
            "augmentation": [
                FLIPS,
                {"name": "shift", "pixels": 4, "padding": "reflect"},
                {"name": "cutout", "size": 12},
                {"name": "shrink", "pixels": [24, 28], "epochs": [12, 10]},
            ],
            "max_epochs": 54,
            "lookahead_decay": 0.7738,
        },
        seeds=8,
    ),
}


def synchronised(device: torch.device) -> float:
    """The time, when the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Timed:
    """One seed's run. seconds: by part, and whole."""

    seed: int
    accuracy: float
    loss: float
    seconds: dict[str, float]


class Runs:
    """Runs of one recipe, which share a network's memory and its captured graphs."""

    def __init__(self, recipe: Recipe, settings: Settings, prepared: Prepared, device: torch.device) -> None:
        self.recipe = recipe
        self.settings = settings
        self.prepared = prepared
        self.device = device
        self.network = self.drawn().to(device)
        self.objective = make_objective(settings.objective, prepared.description)
        self.step = Step(self.network, self.objective, make_optimiser(self.network, settings), settings, device)
        self.first_scale = self.step.scaler.state_dict()

    def drawn(self) -> torch.nn.Module:
        return models.build(self.recipe.model, self.recipe.network, self.prepared.description)

    def run(self, seed: int, rows: np.ndarray, held_out: np.ndarray) -> Timed:
        """Train on ``rows`` from the weights of ``seed``, and predict ``held_out``."""
        settings, prepared, device = self.settings, self.prepared, self.device
        times = [synchronised(device)]
        seed_epoch(seed, epoch=0)
        # In place, where the graphs have them.
        self.network.load_state_dict(self.drawn().state_dict())
        init_from_data(self.network, prepared)
        self.step.optimiser.state.clear()
        self.step.scaler.load_state_dict(self.first_scale)
        times.append(synchronised(device))
        batches = Batches(prepared, rows, device, settings.batch_size, seed, augmentation=settings.augmentation)
        predictor = Predictor(prepared, held_out, device, half=self.step.half if settings.amp_validation else None)
        times.append(synchronised(device))
        average = self.train(batches, seed)
        times.append(synchronised(device))
        logits = predictor(average.network)
        accuracy = float((logits.argmax(axis=1) == prepared.labels[held_out]).mean())
        times.append(synchronised(device))
        parts = zip(("weights", "data", "training", "evaluation"), times, times[1:], strict=False)
        seconds = {name: end - start for name, start, end in parts}
        return Timed(seed, accuracy, self.loss, seconds | {"whole": times[-1] - times[0]})

    def train(self, batches: Batches, seed: int) -> Average:
        """Train as reread/training/loop.py, without validation and checkpoints; return the averaged network."""
        settings = self.settings
        schedule = Schedule(settings.schedule, settings.learning_rate, settings.max_epochs)
        lookahead = Lookahead(self.network, settings.lookahead_decay, len(batches), settings.max_epochs)
        average = Average(self.network, settings.ema_decay)
        for epoch in range(1, settings.max_epochs + 1):
            seed_epoch(seed, epoch)
            self.network.train()
            recent: deque[tuple[torch.Tensor, ...]] = deque(maxlen=average.batches)
            for number, batch in enumerate(batches.epoch(epoch)):
                done = (epoch - 1) * len(batches) + number
                outcome = self.step(batch.inputs, batch.target, schedule(done, len(batches)))
                lookahead.update(done)
                average.update(done)
                recent.append(batch.inputs)
        average.take_buffers(recent)
        self.loss = float(outcome.loss)
        return average


def measure(
    recipe: Recipe,
    prepared: Prepared,
    device: torch.device,
    seeds: Sequence[int],
    validation: bool = False,
) -> dict[str, Any]:
    """Run ``recipe`` for each of ``seeds`` after one warm-up; with ``validation`` the test split is not read."""
    settings = from_json(Settings, recipe.training)
    configure(settings)
    splits = ("train",) if validation else ("train", "validation")
    rows = np.concatenate([prepared.rows(split) for split in splits])
    held_out = prepared.rows("validation" if validation else "test")
    runs = Runs(recipe, settings, prepared, device)
    start = synchronised(device)
    runs.run(seeds[0], rows, held_out)
    warm_up = synchronised(device) - start
    finished = []
    for seed in seeds:
        finished.append(runs.run(seed, rows, held_out))
        run = finished[-1]
        print(f"seed {run.seed}: {run.accuracy:.4f} in {run.seconds['whole']:.3f} s", flush=True)
    accuracy = mean_interval([run.accuracy for run in finished])
    whole = [run.seconds["whole"] for run in finished]
    return {
        "model": recipe.model,
        "network": recipe.network,
        "training": recipe.training,
        "parameters": parameter_count(runs.network),
        "kernels": kernels(runs.network),
        "rows": len(rows),
        "evaluated_on": "validation" if validation else "test",
        "accuracy": {"mean": accuracy.mean, "low": accuracy.low, "high": accuracy.high},
        "accuracy_deviation": statistics.stdev(run.accuracy for run in finished) if len(finished) > 1 else None,
        "seconds": {name: statistics.mean(run.seconds[name] for run in finished) for name in finished[0].seconds},
        "slowest_seconds": max(whole),
        "warm_up_seconds": warm_up,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
        "n": len(finished),
        "runs": [vars(run) for run in finished],
    }


def recorded(
    name: str, recipe: Recipe, prepared: Prepared, seeds: Sequence[int], file: Path | None
) -> AbstractContextManager[Any]:
    """Open the test split for runs of a recipe. file: that of ``--json``, beside which the entry is written too.

    InputError on a machine that has neither the ledger nor a file.
    """
    if file is None and not LEDGER.parent.is_dir():
        raise InputError(f"there is no {LEDGER.parent}/ here for the entry of this read: give --json FILE")
    beside = None if file is None else file.with_name(f"{file.name}.{LEDGER.name}")
    parts = {**vars(recipe), "seeds": list(seeds)}
    return open_test_split(
        f"speed record {name}", content_key(parts), version_of(prepared.description), parts, beside=beside
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.speed_record", description=__doc__.split("\n\n")[0])
    parser.add_argument("recipe", metavar="RECIPE", help=f"one of {', '.join(RECIPES)}")
    parser.add_argument("--prepared", type=Path, required=True, metavar="FOLDER", help="CIFAR-10 in prepared/")
    parser.add_argument("--seeds", type=int, metavar="N", help="how many (default: the recipe's)")
    parser.add_argument("--first-seed", type=int, default=0, metavar="N", help="the others follow (%(default)s)")
    parser.add_argument("--validation", action="store_true", help="choose settings: the test split is not read")
    for name in ("network", "training"):
        parser.add_argument(f"--{name}", type=json.loads, default={}, metavar="JSON", help=f"{name} settings to change")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    refuse_unknown([arguments.recipe], RECIPES, "the arguments")
    if arguments.seeds is not None and arguments.seeds < 1:
        raise InputError(f"--seeds is {arguments.seeds}: give 1 or more")
    if not torch.cuda.is_available():
        raise InputError("the record is timed on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")
    recipe = RECIPES[arguments.recipe].changed(arguments.network, arguments.training)
    device = torch.device("cuda", torch.cuda.current_device())
    seeds = range(arguments.first_seed, arguments.first_seed + (arguments.seeds or recipe.seeds))
    prepared = open_prepared(arguments.prepared)
    with nullcontext() if arguments.validation else recorded(arguments.recipe, recipe, prepared, seeds, arguments.json):
        figures = measure(recipe, prepared, device, seeds, arguments.validation)
    commit, changed = checkout() or (None, None)
    measured = {
        "recipe": arguments.recipe,
        "commit": commit,
        "uncommitted_changes": changed,
        "environment": bench.environment(),
        "cudnn": torch.backends.cudnn.version(),
        **figures,
    }
    print(summary(measured))
    print(json.dumps({name: value for name, value in measured.items() if name != "runs"}))
    if arguments.json:
        write_json(arguments.json, measured)


def summary(measured: Mapping[str, Any]) -> str:
    """The result in three lines."""
    accuracy, seconds = measured["accuracy"], measured["seconds"]
    interval = "" if accuracy["low"] is None else f" [{accuracy['low']:.4%}, {accuracy['high']:.4%}]"
    parts = ", ".join(f"{name} {value:.3f}" for name, value in seconds.items() if name != "whole")
    return (
        f"{measured['evaluated_on']} accuracy {accuracy['mean']:.4%}{interval}, {measured['n']} seeds\n"
        f"{seconds['whole']:.3f} s on average, at most {measured['slowest_seconds']:.3f} s ({parts})\n"
        f"warm-up, not counted: {measured['warm_up_seconds']:.1f} s"
    )


if __name__ == "__main__":
    command(main)()
