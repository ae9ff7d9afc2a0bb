"""Train a finished run again from its job.json, beside it, and compare the two.

The job stays as it was; what it was made of (source, machine, prepared arrays) is recorded anew, so that the
comparison names each part that is another today.
"""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planning.experiment import experiments, load_experiment
from planning.folders import runs_root
from planning.jobs import source
from planning.runs import Run
from preprocessing.prepare import prepared_key
from storage.errors import InputError
from storage.files import file_lock, sha256_file
from storage.prepared import DESCRIPTION
from training.launcher import run_training
from training.machine import machine

FOLDER = ".reproduced"


def reproduce(run: Run, on_event: Callable[[dict[str, Any]], None]) -> Run:
    """Train ``run`` again in runs/.reproduced/RUN_KEY and return that; the original is only read.

    InputError when the run is not finished, its prepared arrays are gone, or the source of today refuses its job.
    """
    if not run.finished:
        raise InputError(
            f"{run.directory} is not finished: there is nothing to reproduce yet, run its experiment again"
        )
    prepared = Path(run.job["prepared"])
    if not (prepared / DESCRIPTION).is_file():
        raise InputError(f"{prepared} is gone: {_how_to_prepare(run)}")
    directory = runs_root() / FOLDER / run.key
    with file_lock(Path(".locks") / f"reproduce-{run.key}.lock", blocking=False) as free:
        if not free:
            raise InputError(f"{run.key} is being reproduced by another process: wait for it")
        # Anew from the start: what an earlier attempt left may be of another source.
        shutil.rmtree(directory, ignore_errors=True)
        job = {
            **run.job,
            "run_directory": str(directory),
            "prepared_sha256": sha256_file(prepared / DESCRIPTION),
            "source": source(run.job["model"], run.job["training"]),
            "machine": machine(),
        }
        run_training(job, on_event)
    return Run(directory)


def forget(again: Run) -> None:
    """Remove what ``reproduce`` returned."""
    shutil.rmtree(again.directory)
    with contextlib.suppress(OSError):  # others may lie beside it
        again.directory.parent.rmdir()


def _how_to_prepare(run: Run) -> str:
    """The command that makes the prepared arrays of ``run`` again, or what stands against it."""
    data, key = run.job["data"], Path(run.job["prepared"]).name
    for name in experiments():
        settings = load_experiment(name).preprocessing.get(data)
        if settings is not None and prepared_key(data, settings) == key:
            return f"make it again with `python -m commands.preprocess --experiment {name} --data {data}`"
    commit = run.environment.get("git_commit")
    where = f"of commit {commit[:12]}" if commit else "that it was made with"
    return f"no experiment prepares '{data}' so today, only the data, parameters and source {where} do"
