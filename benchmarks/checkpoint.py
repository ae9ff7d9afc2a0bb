"""Time a checkpoint per epoch as a share of an epoch of CIFAR-10: ``python -m benchmarks.checkpoint``.

python -m benchmarks.checkpoint                                  fastnet and DenseNet-BC-100-12 of their experiments
python -m benchmarks.checkpoint --rows 256 --epochs 3 --warm 1   on a CPU: few rows, and the time of an epoch is scaled

Runs with a checkpoint after each epoch alternate with runs without one, on drawn images. ``waited`` is how long
training waits at an epoch's end: on a CPU for the whole checkpoint, on a GPU for the copies and for the checkpoint
before, while a thread writes. ``share`` is the median of ``waited`` over that of an epoch of 45,000 training and 5,000
validation images without a checkpoint. ``difference`` compares the medians of whole epochs with and without, which also
has what the writing thread takes from training. The first epochs of each run capture CUDA graphs and are not counted.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.speed_record import synchronised
from reread.planning.plan import Variant
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError, command, refuse_unknown
from reread.storage.files import write_json
from reread.storage.prepared import Prepared
from reread.training import loop
from reread.training.checkpoint import Checkpoint
from reread.training.device import configure, environment
from reread.training.progress import Progress
from reread.training.settings import Settings, TrainingJob

# Subject: experiment and variant.
SUBJECTS = {"fastnet": ("fastnet", "fastnet-gelu"), "densenet": ("densenet-fast", "densenet-100")}
ROUNDS, EPOCHS, WARM_EPOCHS = 3, 8, 3
# Of training and validation, as of CIFAR-10 here.
IMAGES = (45_000, 5_000)


def drawn_images(rows: tuple[int, int] = IMAGES) -> Prepared:
    """Images of 32 x 32 pixels in three colours; rows: of training and of validation."""
    random = np.random.default_rng(0)
    arrays = {
        "images": random.integers(0, 256, (sum(rows), 32, 32, 3), np.uint8),
        "labels": random.integers(0, 10, sum(rows), np.int32),
    }
    about = {
        "name": "drawn",
        "kind": "image",
        "task": "single-label",
        "classes": [str(label) for label in range(10)],
        "splits": {"train": [0, rows[0]], "validation": [rows[0], sum(rows)], "test": [sum(rows), sum(rows)]},
        "arrays": {name: {"shape": list(array.shape)} for name, array in arrays.items()},
        "mean": [0.5] * 3,
        "deviation": [0.25] * 3,
    }
    return Prepared(Path("drawn"), about, arrays)


class Clock(Progress):
    """Notes the seconds of the training and validation of each epoch, and of its checkpoint."""

    def __init__(self, job: TrainingJob, device: torch.device) -> None:
        super().__init__(job, events=None)
        self.live = False
        self.device = device
        self.spans: dict[str, list[float]] = {"training": [], "checkpoint": []}

    def started(self, epoch: int, device: str) -> None:
        super().started(epoch, device)
        self.last = synchronised(self.device)

    def note(self, span: str) -> None:
        now = synchronised(self.device)
        self.spans[span].append(now - self.last)
        self.last = now

    def epoch(self, row: dict[str, float], steps: int) -> None:
        """The figures are all that is printed."""


def timed_run(
    job: TrainingJob, prepared: Prepared, device: torch.device, saves: bool
) -> tuple[dict[str, list[float]], list[float]]:
    """Train a job; return the spans of ``Clock`` by epoch and the seconds of each writing of a checkpoint.

    saves: whether there are checkpoints.
    """
    clock, save, write = Clock(job, device), Checkpoint.save, Checkpoint._write
    writing: list[float] = []

    def saved(checkpoint: Checkpoint, *arguments: Any) -> None:
        clock.note("training")
        if saves:
            save(checkpoint, *arguments)
        clock.note("checkpoint")

    def written(*arguments: Any) -> None:
        start = time.perf_counter()
        write(*arguments)
        writing.append(time.perf_counter() - start)

    with mock.patch.multiple(Checkpoint, save=saved, _write=written):
        loop.train(job, prepared, device, clock)
    return clock.spans, writing


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoint", description=__doc__.split("\n\n")[0])
    parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"which: {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--rows", type=int, default=sum(IMAGES), help="images, a tenth for validation (%(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of each run (%(default)s)")
    parser.add_argument("--warm", type=int, default=WARM_EPOCHS, help="of these, not counted (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="runs with and without checkpoints (%(default)s)")
    parser.add_argument("--folder", type=Path, help="write the checkpoints here; default: a temporary folder")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    refuse_unknown(arguments.subjects, SUBJECTS, "the arguments")
    if not 0 <= arguments.warm < arguments.epochs:
        raise InputError(f"--warm is {arguments.warm}: give fewer than --epochs ({arguments.epochs})")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    measured: dict[str, Any] = {"environment": environment(device, runs_per_gpu=1), "results": {}}
    print("| network | MB | writing, s | waited, s | epoch, s | share | difference |")
    print(f"|{'---|' * 7}")
    prepared = drawn_images((arguments.rows - arguments.rows // 10, arguments.rows // 10))
    for name in arguments.subjects or SUBJECTS:
        experiment, variant = SUBJECTS[name]
        subject = make_plan(experiment, [variant]).variants[variant]
        result = measure(
            subject, prepared, device, arguments.epochs, arguments.warm, arguments.rounds, arguments.folder
        )
        measured["results"][name] = {"experiment": experiment, "variant": variant, **result}
        print(line(name, result), flush=True)
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def measure(
    subject: Variant,
    prepared: Prepared,
    device: torch.device,
    epochs: int,
    warm: int,
    rounds: int,
    folder: Path | None = None,
) -> dict[str, Any]:
    """Train ``rounds`` times with and without checkpoints, ``epochs`` epochs each, and return the seconds."""
    rows = len(prepared.rows("train")) + len(prepared.rows("validation"))
    batch_size = min(subject.training["batch_size"], len(prepared.rows("train")))
    limits = {"max_epochs": epochs, "patience": epochs, "batch_size": batch_size}
    settings = Settings(**{**subject.training, **limits})
    configure(settings)
    seconds: dict[str, list[float]] = {"with": [], "without": [], "waited": [], "writing": []}
    for _ in range(rounds):
        for way in ("without", "with"):
            with tempfile.TemporaryDirectory(dir=folder) as directory:
                job = TrainingJob(
                    "benchmark", subject.model, subject.model, 0, subject.network, settings, Path(), Path(directory)
                )
                spans, writing = timed_run(job, prepared, device, saves=way == "with")
                if device.type == "cuda":
                    # The graphs of a run hold its memory until they are collected.
                    gc.collect()
                    torch.cuda.empty_cache()
                size = sum(path.stat().st_size for path in Path(directory).glob(f"checkpoints/{epochs:06}/*"))
            whole = [sum(parts) for parts in zip(*spans.values(), strict=True)]
            seconds[way] += whole[warm:]
            if way == "with":
                seconds["waited"] += spans["checkpoint"][warm:]
                seconds["writing"] += writing[warm:]
                megabytes = size / 1e6
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    epoch = medians["without"] * sum(IMAGES) / rows
    return {
        "device": str(device),
        "rows": rows,
        "megabytes": megabytes,
        "epoch": epoch,
        "medians": medians,
        "share": medians["waited"] / epoch,
        "difference": (medians["with"] - medians["without"]) / epoch,
        "seconds": seconds,
    }


def line(name: str, result: dict[str, Any]) -> str:
    """Return a row of the table that ``main`` prints."""
    medians = result["medians"]
    return (
        f"| {name} | {result['megabytes']:.1f} | {medians.get('writing', 0):.3f} | {medians['waited']:.3f} | "
        f"{result['epoch']:.2f} | {result['share']:.2%} | {result['difference']:+.2%} |"
    )


if __name__ == "__main__":
    command(main)()
