"""Give finished runs of older code their key of today.

reread adopt --experiment imdb --from ../old/runs
reread adopt --experiment imdb --from runs --epochs 2 --dry-run
REREAD_MACHINE=machine.json reread adopt --experiment imdb --from runs --proof there/runs

The first seed of each variant is trained again by today's code for some epochs (--epochs), and its history must equal
the old run's to the last digit. Then each old run of that variant is copied to its key of today; one whose variant is
trained differently today is left. With --proof the first epochs were trained elsewhere: `reread jobs` writes the jobs,
`python -m training` trains them there, and their folders are copied to FOLDER.
"""

import contextlib
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from commands.options import Experiment, Variants, plan_of
from planning.runs import all_runs
from storage.errors import InputError
from storage.files import published_directory, read_json, write_json
from storage.locks import file_lock, run_lock
from storage.run_folder import HISTORY, JOB, RESULT, RunFolder

FOLDER = ".adopted"
# Parts of a job by which the old runs of one variant must agree, whatever their names were.
SETTINGS = ("model", "network", "training", "machine", "prepared")


def command(
    source: Annotated[Path, typer.Option("--from", metavar="FOLDER", help="The folder of the old runs.")],
    experiment: Experiment = "default",
    variants: Variants = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Epochs that must be equal.")] = 1,
    proof: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Runs whose first epochs another machine trained.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Compare and copy nothing.")] = False,
) -> int:
    plan = plan_of(experiment, variants)
    runs = [run for run in all_runs(source) if run.finished and run.job.get("experiment") == experiment]
    if not runs:
        raise InputError(f"--from {source}: no finished run of experiment '{experiment}' is there")
    if plan.targets_remote_machine and proof is None:
        raise InputError("--proof is missing: REREAD_MACHINE names another machine, where the first epochs are trained")

    from tasks.preprocess import preprocess

    jobs = plan.unfinished({key: preprocess.fn(about) for key, about in plan.preparations().items()})
    found: dict[str, list[tuple[dict[str, Any], RunFolder]]] = {}
    for job in jobs:
        if old := old_run(job, runs):
            found.setdefault(job["variant"], []).append((job, old))
    different = 0
    for variant, pairs in found.items():
        require_agreement(variant, [old for _, old in pairs])
        job, old = pairs[0]
        then = history(old.directory, epochs)
        now = (
            history(proof / job["run_key"], epochs) if proof else train_first_epochs(job, epochs, plan.environment.runs)
        )
        if then != now[: len(then)] or not then:
            different += 1
            epoch = next(
                (number for number, lines in enumerate(zip(then, now, strict=False), 1) if lines[0] != lines[1]), 0
            )
            print(f"{variant}: left, today's code trains it differently (from epoch {epoch} of {old.key})")
            continue
        print(f"{variant}: {len(then)} epochs are equal, {len(pairs)} runs are adopted{' (dry run)' * dry_run}")
        for job, old in pairs if not dry_run else ():
            adopt(job, old)
    return 1 if different else 0


def old_run(job: Mapping[str, Any], runs: Iterable[RunFolder]) -> RunFolder | None:
    """Return the run of the same experiment, variant, data set and seed; InputError where there are several."""
    names = ("experiment", "variant", "model", "data", "seed")
    found = [run for run in runs if all(run.job.get(name) == job[name] for name in names)]
    if len(found) > 1:
        keys = ", ".join(run.key for run in found[:3])
        raise InputError(f"{len(found)} runs are of {job['variant']} seed {job['seed']} ({keys}): leave one of them")
    return found[0] if found else None


def require_agreement(variant: str, runs: list[RunFolder]) -> None:
    """Raise InputError where old runs of a variant differ in more than their seed."""
    first = runs[0]
    for run in runs[1:]:
        for name in SETTINGS:
            if run.job.get(name) != first.job.get(name):
                raise InputError(
                    f"{variant}: runs {first.key} and {run.key} differ in {name}: adopt one experiment's runs"
                )


class Enough(Exception):
    """As many epochs were trained as are compared."""


def history(directory: Path, epochs: int) -> list[str]:
    """Return the lines of the first epochs of a run's history.csv."""
    path = directory / HISTORY
    if not path.is_file():
        raise InputError(f"{path} is missing: train the first epochs of that run")
    return path.read_text(encoding="utf-8").splitlines()[1 : epochs + 1]


def train_first_epochs(job: Mapping[str, Any], epochs: int, runs_root: Path) -> list[str]:
    """Train ``job`` beside the runs until ``epochs`` have ended and return its history so far."""
    from training.launcher import run_training

    directory = runs_root / FOLDER / job["run_key"]

    def count(event: Mapping[str, Any]) -> None:
        if event["event"] == "epoch" and event["epoch"] >= epochs:
            raise Enough

    with file_lock(run_lock(directory)) as lock:
        shutil.rmtree(directory, ignore_errors=True)
        with contextlib.suppress(Enough):
            run_training({**job, "run_directory": str(directory)}, count, lock)
        lines = history(directory, epochs)
        shutil.rmtree(directory)
    return lines


def adopt(job: Mapping[str, Any], old: RunFolder) -> None:
    """Copy an old run to the folder of ``job``, under its key; its evaluations are made again."""
    import models

    destination = Path(job["run_directory"])
    with file_lock(run_lock(destination)), published_directory(destination) as folder:
        ignored = shutil.ignore_patterns("evaluation", ".*", JOB, RESULT)
        shutil.copytree(old.directory, folder, ignore=ignored, dirs_exist_ok=True)
        write_json(folder / JOB, {**job, "adopted_from": old.key})
        result = {**read_json(old.directory / RESULT), "run_key": job["run_key"]}
        result["network_source"] = models.network_source(job["model"], job["network"])
        write_json(folder / RESULT, result)
