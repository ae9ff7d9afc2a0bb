"""Reuse finished runs that newer code leaves valid.

reread adopt --experiment imdb --from ../old/runs
reread adopt --experiment imdb --from runs --epochs 2 --dry-run
REREAD_MACHINE=machine.json reread adopt --experiment imdb --from runs --checkout ../at-that-commit
REREAD_MACHINE=machine.json reread adopt --experiment imdb --from runs --proof there/runs

Each old run of a variant is copied to its key of today, if today's code computes the same:

- if the source that trained it, in a checkout (--checkout), is today's in all that decides a number;
- on a CPU, if both sources gave the same golden runs (reread/planning/equivalent_sources.json);
- otherwise today's code trains the first seed of the variant for some epochs (--epochs), and the history must equal the
  old run's to the last digit. With --proof another machine trained these epochs: `reread jobs` writes the jobs,
  `python -m reread.training` trains them there, and their folders are copied to FOLDER.

A variant that today's code trains differently is left as it is, and the exit code is 1.
"""

import contextlib
import csv
import dataclasses
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from reread.commands.options import Experiment, Variants, plan_of
from reread.planning.adopt import adopt, golden_runs_are_equal, old_run, require_agreement, sources_are_equal
from reread.planning.runs import all_runs
from reread.storage.errors import InputError
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.storage.run_folder import HISTORY, RunFolder

FOLDER = ".adopted"


def command(
    source: Annotated[Path, typer.Option("--from", metavar="FOLDER", help="The folder of the old runs.")],
    experiment: Experiment = "default",
    variants: Variants = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs that must be equal.")] = 1,
    proof: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Runs whose first epochs another machine trained.")
    ] = None,
    checkout: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="A checkout of the source that trained the old runs.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare and copy nothing.")] = False,
) -> int:
    plan = plan_of(experiment, variants)
    runs = [run for run in all_runs(source) if run.finished and run.job.get("experiment") == experiment]
    if not runs:
        raise InputError(f"--from {source}: no finished run of experiment '{experiment}' is there")
    if plan.targets_remote_machine and proof is None and checkout is None:
        raise InputError(
            "--proof or --checkout is missing: REREAD_MACHINE names another machine, where the first epochs are trained"
        )

    from tasks.preprocess import preprocess

    jobs = plan.unfinished({key: preprocess.fn(about) for key, about in plan.preparations().items()})
    adoptable: dict[str, list[tuple[Job, RunFolder]]] = {}
    for job in jobs:
        if old := old_run(job, runs):
            adoptable.setdefault(job.variant, []).append((job, old))
    different = 0
    for variant, pairs in adoptable.items():
        require_agreement(variant, [old for _, old in pairs])
        equal = evidence(pairs, epochs, proof, checkout, plan.environment.runs, plan.targets_remote_machine)
        if equal is None:
            different += 1
            print(f"{variant}: left, nothing shows that today's code trains it equally")
            continue
        print(f"{variant}: {equal}, {len(pairs)} runs are adopted{' (dry run)' * dry_run}")
        for job, old in pairs if not dry_run else ():
            adopt(job, old)
    return 1 if different else 0


def evidence(
    pairs: list[tuple[Job, RunFolder]],
    epochs: int,
    proof: Path | None,
    checkout: Path | None,
    runs_root: Path,
    remote: bool,
) -> str | None:
    """Return what shows that today's code computes the old runs of a variant, or None where it does not."""
    if checkout and all(sources_are_equal(job, old.job, checkout.resolve()) for job, old in pairs):
        return "the source is equal"
    if all(golden_runs_are_equal(job, old.job) for job, old in pairs):
        return "golden runs are equal"
    if remote and proof is None:
        return None
    job, old = pairs[0]
    then = history(old.directory, epochs)
    now = history(proof / job.run_key, epochs) if proof else train_first_epochs(job, epochs, runs_root)
    return f"{len(then)} epochs are equal" if then and are_equal(then, now[: len(then)]) else None


def are_equal(then: list[dict[str, str]], now: list[dict[str, str]]) -> bool:
    """Return whether epochs are equal in every column that both have; newer code may record more."""
    return len(then) == len(now) and all(
        before[name] == after[name]
        for before, after in zip(then, now, strict=True)
        for name in before.keys() & after.keys()
    )


class Enough(Exception):
    """As many epochs were trained as are compared."""


def history(directory: Path, epochs: int) -> list[dict[str, str]]:
    """Return the first epochs of a run's history.csv, as they are written."""
    path = directory / HISTORY
    if not path.is_file():
        raise InputError(f"{path} is missing: train the first epochs of that run")
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))[:epochs]


def train_first_epochs(job: Job, epochs: int, runs_root: Path) -> list[dict[str, str]]:
    """Train ``job`` beside the runs until ``epochs`` have ended and return its history so far."""
    from reread.training.launcher import run_training

    directory = runs_root / FOLDER / job.run_key

    def count(event: Mapping[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] >= epochs:
            raise Enough

    with file_lock(run_lock(directory)) as lock:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(Enough):
            run_training(dataclasses.replace(job, run_directory=directory), count, lock)
        lines = history(directory, epochs)
        shutil.rmtree(directory)
    return lines
