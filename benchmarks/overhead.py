"""Milliseconds that a run takes beside its training, on a warm server: ``python -m benchmarks.overhead``.

python -m benchmarks.overhead --runs 200 --json FILE

Runs of a tiny network on digits, of one epoch and different seeds, are trained by the flow one after the other with
Prefect's server and MLflow's database as on any machine, in a temporary folder. The first pass trains them, and the
second finds them cached. ``training`` is what timing.json has of a run: from its first step to its last. All else is
overhead: the flow's own time, feeding a process, torch's set-up, checkpoints, tracking. One run comes before, which
imports torch and MLflow and makes the database. ``parts`` are milliseconds per run of what this process calls:
``process`` is the time that it waits for the training process, and ``tracking`` is in a thread beside it.
"""

import argparse
import contextlib
import json
import os
import platform
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any
from unittest import mock

from storage.errors import command
from storage.files import read_json, write_json
from storage.run_folder import TIMING

# The first run of a pass, which is not counted.
WARM = 1
OVERRIDES = (
    "training.max_epochs=1",
    "training.schedule={name: constant, warmup_epochs: 0}",
    "preprocessing.rows_per_class=5",
)


class Parts:
    """Seconds by the name of what was called, of calls that are not within another one of them."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.thread = threading.local()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if getattr(self.thread, "within", False):
                return function(*arguments, **named)
            self.thread.within = True
            start = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += time.perf_counter() - start
                self.thread.within = False

        return call


def measure(runs: int, folder: Path) -> dict[str, Any]:
    """Train ``runs`` runs and find them again; return milliseconds per run."""
    os.environ |= {
        "REREAD_RUNS": str(folder / "runs"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "REREAD_WORKERS": "1",
    }
    import tasks.train
    from commands.servers import prefect_session
    from flows.train import train
    from planning.plan import make_plan
    from tracking.runs import Tracking

    def plan(first: int, count: int) -> dict[str, Any]:
        return make_plan("tiny", ["densenet-relu"], range(first, first + count), OVERRIDES).to_json()

    def timed(what: dict[str, Any]) -> tuple[float, list[str], dict[str, float]]:
        parts = Parts()
        with contextlib.ExitStack() as stack:
            for owner, name, title in (
                (Tracking, "start", "tracking"),
                (Tracking, "log_epochs", "tracking"),
                (Tracking, "finish", "tracking"),
                (Tracking, "record", "tracking"),
                (tasks.train, "run_training", "process"),
                (tasks.train, "provenance", "provenance"),
                (tasks.train, "RunProgress", "progress"),
            ):
                patch = mock.patch.object(owner, name, parts.timed(title, getattr(owner, name)))
                stack.enter_context(patch)
            start, cpu = time.perf_counter(), time.process_time()
            directories = train(plan=what)
            seconds = time.perf_counter() - start
            parts.seconds["CPU of this process"] = time.process_time() - cpu
            return seconds, directories, dict(parts.seconds)

    with prefect_session():
        found: dict[str, Any] = {}
        train(plan=plan(0, WARM))
        for title in ("trained", "cached"):
            seconds, directories, parts = timed(plan(WARM, runs))
            training = [read_json(Path(one) / TIMING)["seconds"] for one in directories]
            within = fmean(training) if title == "trained" else 0.0
            found[title] = {
                "run": 1e3 * seconds / runs,
                "training": 1e3 * within,
                "overhead": 1e3 * (seconds / runs - within),
                "parts": {name: 1e3 * one / runs for name, one in sorted(parts.items())},
            }
            print(line(title, found[title]), flush=True)
        return found


def line(title: str, found: dict[str, Any]) -> str:
    parts = ", ".join(f"{name} {one:.1f}" for name, one in found["parts"].items())
    return (
        f"{title}: {found['run']:.1f} ms per run, of which training {found['training']:.1f}, "
        f"overhead {found['overhead']:.1f} ({parts})"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.runs, Path(folder))
    load = os.getloadavg()[0]
    measured = {"environment": environment(), "load": load, "runs": options.runs, "milliseconds": found}
    print(json.dumps(measured))
    if options.json:
        write_json(options.json, measured)


def environment() -> dict[str, Any]:
    import mlflow
    import prefect
    import torch

    versions = {one.__name__: one.__version__ for one in (torch, mlflow, prefect)}
    return {"python": platform.python_version(), "cores": os.cpu_count(), **versions}


if __name__ == "__main__":
    command(main)()
