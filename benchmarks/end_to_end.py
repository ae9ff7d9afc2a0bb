"""Rows per second of whole training runs, beside the step alone: ``python -m benchmarks.end_to_end``, on a GPU.

python -m benchmarks.end_to_end han --prepared prepared/KEY       HAN on a prepared text
python -m benchmarks.end_to_end densenet --prepared prepared/KEY  DenseNet-BC-100-12 on prepared images, augmented
python -m benchmarks.end_to_end                                   each on drawn data of the size of IMDB or CIFAR-10

A run is reread.training.loop.train with its validation and checkpoints, in a temporary folder. ``epoch`` is the pace of
its steps, while the last epoch's checkpoint is written; ``with validation`` adds validation, ``whole`` also what the
checkpoint takes of training: copying, and waiting for the one before. ``step alone`` calls the same step on the batches
of the last epoch, which are on the device already. ``loading alone`` makes these batches. The first epochs capture a
CUDA graph for each new shape and are not counted: figures are medians of the other epochs, and of passes over the
batches. The GPU is synchronised between steps, validation and checkpoint. ``writing`` is what the thread that writes
checkpoints takes: where it takes longer than an epoch, training waits for it.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import nn

import models
from cuda_ext import bench
from models.objectives import make_objective
from reread.batches.batches import Batches
from reread.batches.collation import reads_ragged
from reread.storage.errors import InputError, command, refuse_unknown
from reread.storage.files import write_json
from reread.storage.prepared import Prepared, open_prepared
from reread.training import loop
from reread.training.checkpoint import Checkpoint
from reread.training.device import configure
from reread.training.optimisers import make_optimiser
from reread.training.progress import Progress
from reread.training.settings import Settings, TrainingJob
from reread.training.step import Step
from reread.training.validation import validate

WITHOUT_WARM_UP = {"name": "cosine", "warmup_epochs": 0}
EPOCHS, WARM_EPOCHS, PASSES = 8, 3, 5
# Rows of training and validation, as of IMDB and CIFAR-10 here.
DOCUMENTS, IMAGES = (22_488, 2_512), (45_000, 5_000)
VOCABULARY, SENTENCES, WORDS = 50_000, 44, 75


@dataclass(frozen=True)
class Subject:
    """A network and its training; ``draw`` makes data where none is prepared."""

    model: str
    network: dict[str, Any]
    training: dict[str, Any]
    draw: Callable[[], Prepared] = field(repr=False)


def drawn_text(rows: tuple[int, int] = DOCUMENTS) -> Prepared:
    """Documents of about 11 sentences of about 21 words, both log-normal."""
    random = np.random.default_rng(0)
    count = sum(rows)
    sentence_counts = np.clip(random.lognormal(2.25, 0.62, count), 1, SENTENCES).astype(np.int32)
    word_counts = np.clip(random.lognormal(2.83, 0.65, (count, SENTENCES)), 1, WORDS).astype(np.int32)
    word_counts[np.arange(SENTENCES) >= sentence_counts[:, None]] = 0
    arrays = {
        "tokens": random.integers(2, VOCABULARY, word_counts.sum(), np.int32),
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
        "labels": random.integers(0, 2, count, np.int32),
    }
    return _drawn("text", 2, rows, arrays, {"vocabulary_size": VOCABULARY})


def drawn_images(rows: tuple[int, int] = IMAGES) -> Prepared:
    """Images of 32 x 32 pixels in three colours."""
    random = np.random.default_rng(0)
    arrays = {
        "images": random.integers(0, 256, (sum(rows), 32, 32, 3), np.uint8),
        "labels": random.integers(0, 10, sum(rows), np.int32),
    }
    return _drawn("image", 10, rows, arrays, {"mean": [0.5] * 3, "deviation": [0.25] * 3})


def _drawn(
    kind: str, classes: int, rows: tuple[int, int], arrays: dict[str, np.ndarray], more: dict[str, Any]
) -> Prepared:
    about = {
        "name": "drawn",
        "kind": kind,
        "task": "single-label",
        "classes": [str(label) for label in range(classes)],
        "splits": {"train": [0, rows[0]], "validation": [rows[0], sum(rows)], "test": [sum(rows), sum(rows)]},
        "arrays": {name: {"shape": list(array.shape)} for name, array in arrays.items()},
    }
    return Prepared(Path("drawn"), about | more, arrays)


IMDB = {"learning_rate": 0.005, "ema_decay": 0.999, "adversarial_epsilon": 1.0}
PLAIN = {"batch_size": 64, "learning_rate": 1e-3, "deterministic": False, "max_grad_norm": 0}
SUBJECTS = {
    # As benchmarks/han.py times it.
    "han": Subject("han", {"embedding_dim": 200, "hidden_size": 50, "dropout": 0.0}, PLAIN, drawn_text),
    # As experiments/imdb.yaml trains it.
    "han-imdb": Subject(
        "han",
        {"embedding_dim": 200, "hidden_size": 50, "dropout": 0.3, "embedding_lr_scale": 0.05},
        {"batch_size": 64, **IMDB},
        drawn_text,
    ),
    "densenet": Subject(
        "densenet",
        {"depth": 100, "growth_rate": 12},
        {
            "batch_size": 512,
            "learning_rate": 0.1,
            "optimizer": {"name": "sgd"},
            "augmentation": [{"name": "flip"}, {"name": "shift"}, {"name": "cutout"}],
            "deterministic": False,
            "amp_validation": True,
            "max_grad_norm": 0,
        },
        drawn_images,
    ),
}


class Clock(Progress):
    """Notes when the steps, the validation and the checkpoint of each epoch end."""

    def __init__(self, job: TrainingJob, device: torch.device) -> None:
        super().__init__(job, events=None)
        self.live = False
        self.device = device
        self.spans: dict[str, list[float]] = {"steps": [], "validation": [], "checkpoint": []}

    def started(self, epoch: int, device: str) -> None:
        super().started(epoch, device)
        self.last = synchronised(self.device)

    def note(self, span: str) -> None:
        now = synchronised(self.device)
        self.spans[span].append(now - self.last)
        self.last = now

    def epoch(self, row: dict[str, float], steps: int) -> None:
        """The figures are all that is printed."""


def synchronised(device: torch.device) -> float:
    """The time, when the device has done all its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def timed_run(
    job: TrainingJob, prepared: Prepared, device: torch.device, saves: bool = True
) -> tuple[nn.Module, dict[str, list[float]], list[float]]:
    """Train a job; return its network, the seconds of steps, validation and checkpoint by epoch, and those of each
    writing. ``saves``: whether there are checkpoints."""
    clock, save, write = Clock(job, device), Checkpoint.save, Checkpoint._write
    writing: list[float] = []

    def timed(*arguments: Any) -> Any:
        clock.note("steps")
        validation = validate(*arguments)
        clock.note("validation")
        return validation

    def saved(checkpoint: Checkpoint, *arguments: Any) -> None:
        if saves:
            save(checkpoint, *arguments)
        clock.note("checkpoint")

    def written(*arguments: Any) -> None:
        start = time.perf_counter()
        write(*arguments)
        writing.append(time.perf_counter() - start)

    with mock.patch.object(loop, "validate", timed), mock.patch.multiple(Checkpoint, save=saved, _write=written):
        network, _ = loop.train(job, prepared, device, clock)
    return network, clock.spans, writing


def measure(subject: Subject, prepared: Prepared, device: torch.device, epochs: int, warm: int) -> dict[str, Any]:
    """Train ``epochs`` epochs, of which ``warm`` are not counted, and time the step on the last epoch's batches."""
    settings = Settings(**{"schedule": WITHOUT_WARM_UP, **subject.training, "max_epochs": epochs, "patience": epochs})
    configure(settings)
    rows = prepared.rows("train")
    with tempfile.TemporaryDirectory() as folder:
        job = TrainingJob("benchmark", subject.model, subject.model, 0, subject.network, settings, Path(), Path(folder))
        network, seconds, writing = timed_run(job, prepared, device)
    spans = {name: np.array(of_epochs) for name, of_epochs in seconds.items()}
    whole = {
        "epoch": spans["steps"],
        "with validation": spans["steps"] + spans["validation"],
        "whole": sum(spans.values()),
    }
    pace = {name: len(rows) / statistics.median(seconds[warm:].tolist()) for name, seconds in whole.items()}
    made = Batches(
        prepared,
        rows,
        device,
        settings.batch_size,
        job.seed,
        ragged=reads_ragged(network, device),
        augmentation=settings.augmentation,
    )
    loading = timed_passes(lambda: list(made.epoch(epochs)), device)
    batches = list(made.epoch(epochs))
    objective = make_objective(settings.objective, prepared.description, prepared.labels[rows])
    step = Step(network.train(), objective, make_optimiser(network, settings), settings, device)

    def steps() -> None:
        for batch in batches:
            step(batch.inputs, batch.target, settings.learning_rate)

    alone = timed_passes(steps, device)
    shapes = {tuple(tensor.shape for tensor in batch.inputs) for batch in batches}
    return {
        "loading": made.loader.way,
        "rows": len(rows),
        "steps_per_epoch": len(made),
        "shapes_of_the_last_epoch": len(shapes),
        "rows_per_second": {**pace, "step alone": len(rows) / alone, "loading alone": len(rows) / loading},
        "share_of_step": {name: value * alone / len(rows) for name, value in pace.items()},
        "seconds": {name: seconds.tolist() for name, seconds in spans.items()} | {"writing": writing},
    }


def timed_passes(run: Callable[[], Any], device: torch.device) -> float:
    """Median seconds of PASSES calls, after two that are not timed: the second captures graphs."""
    seconds = []
    for _ in range(PASSES + 2):
        start = synchronised(device)
        run()
        seconds.append(synchronised(device) - start)
    return statistics.median(seconds[2:])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.end_to_end", description=__doc__.split("\n\n")[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"which: {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--prepared", type=Path, metavar="FOLDER", help="a folder of prepared/, for the subjects named")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"more than {WARM_EPOCHS} (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    refuse_unknown(arguments.subjects, SUBJECTS, "the arguments")
    if arguments.epochs <= WARM_EPOCHS:
        raise InputError(f"--epochs is {arguments.epochs}: the first {WARM_EPOCHS} are not counted, give more")
    bench.refuse_without_kernels()
    device = torch.device("cuda", torch.cuda.current_device())
    measured: dict[str, Any] = {"environment": bench.environment(), "results": {}}
    for name in arguments.subjects or SUBJECTS:
        subject = SUBJECTS[name]
        prepared = open_prepared(arguments.prepared) if arguments.prepared else subject.draw()
        models.refuse_other_kind(subject.model, prepared.description["name"], prepared.kind)
        result = measure(subject, prepared, device, arguments.epochs, WARM_EPOCHS)
        measured["results"][name] = {"data": prepared.description["name"], "training": subject.training, **result}
        print(table(name, result), flush=True)
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def table(name: str, result: dict[str, Any]) -> str:
    lines = [
        f"\n{name}: {result['rows']:,} rows, {result['steps_per_epoch']} steps per epoch of "
        f"{result['shapes_of_the_last_epoch']} shapes, batches {result['loading']}",
        "| timed | rows per second | share of the step alone |",
        "|---|---|---|",
    ]
    for timed, pace in result["rows_per_second"].items():
        share = result["share_of_step"].get(timed)
        lines.append(f"| {timed} | {pace:,.0f} | {'' if share is None else f'{share:.1%}'} |")
    for span, seconds in result["seconds"].items():
        lines.append(f"seconds of {span}, by epoch: {', '.join(f'{value:.3f}' for value in seconds)}")
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)()
