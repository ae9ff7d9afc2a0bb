"""Train one (variant, seed), or find it trained; as a command, all seeds of one variant.

python -m tasks.train --variant han [--experiment default]
"""

import argparse
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from planning.experiment import load_experiment
from planning.folders import run_lock
from planning.jobs import check, elsewhere, make_job
from storage.errors import InputError, command
from storage.files import file_lock, read_json
from tasks.preprocess import preprocess
from tasks.progress import RunProgress, say
from tasks.provenance import provenance
from tasks.step import publish_results, step
from tracking.runs import open_tracking
from training.launcher import STOPPING, TrainingFailed, TrainingStopped, run_training
from training.state import COLUMNS


def workers() -> int:
    """How many runs train at a time on this machine: REREAD_WORKERS, or 2."""
    given = os.environ.get("REREAD_WORKERS", "2")
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"REREAD_WORKERS={given} is not a number of runs at a time: give a whole number from 1 up")
    return int(given)


@step(task_run_name="train-{variant}-{seed}")
def train(experiment: str, variant: str, seed: int, prepared: str, fresh: bool = False) -> str:
    """Train one (variant, seed) of an experiment on prepared arrays; return its folder in runs/.

    A finished run is taken up, a broken one goes on from its last epoch; ``fresh`` trains anew.
    """
    if STOPPING.is_set():
        raise TrainingStopped(f"{variant} seed {seed} was not started: everything is being stopped")
    job = make_job(load_experiment(experiment).select([variant], [seed]), variant, seed, Path(prepared))
    run_directory = Path(job["run_directory"])
    # Another process may train the very same run (a deployment beside `dvc repro`): it is trained once.
    with file_lock(run_lock(job["run_key"])):
        if fresh and run_directory.exists() and not elsewhere():
            shutil.rmtree(run_directory)
        if (run_directory / "result.json").is_file():
            open_tracking().record(run_directory, job=job)
            say(f"{_summary(job)} (finished before, {run_directory})")
            return str(run_directory)
        if elsewhere():
            raise InputError(
                f"{variant} seed {seed} is not trained, and REREAD_MACHINE names another machine than this: "
                f"`python -m commands.jobs --experiment {experiment}` writes the jobs to train there"
            )
        _train(job)
    return str(run_directory)


def _train(job: dict[str, Any]) -> None:
    tracking = open_tracking()
    run_id = tracking.start(job, provenance(job))
    progress = RunProgress(job)

    def follow(event: dict[str, Any]) -> None:
        progress(event)
        if event["event"] == "epoch":
            tracking.log_epochs(run_id, [{name: event[name] for name in COLUMNS}])

    try:
        run_training(job, follow)
    except (InputError, TrainingFailed) as error:
        stopped = isinstance(error, TrainingStopped)
        tracking.fail(run_id, "KILLED" if stopped else "FAILED", str(error))
        progress.finish(f"{job['variant']} seed {job['seed']}: {'stopped' if stopped else 'failed'}")
        raise
    tracking.finish(run_id, Path(job["run_directory"]))
    progress.finish(_summary(job))


def _summary(job: dict[str, Any]) -> str:
    result = read_json(Path(job["run_directory"]) / "result.json")
    return (
        f"{job['variant']} seed {job['seed']}: validation {result['validation']['score']:.4f} "
        f"at epoch {result['best_epoch']} of {result['epochs']}"
    )


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.train", description="Train all seeds of one variant.")
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variant", required=True)
    arguments = parser.parse_args()
    experiment = load_experiment(arguments.experiment).select([arguments.variant])
    check(experiment)
    prepared = preprocess.fn(experiment.name, experiment.variants[arguments.variant].data)
    with ThreadPoolExecutor(workers()) as pool:
        folders = list(
            pool.map(lambda seed: train.fn(experiment.name, arguments.variant, seed, prepared), experiment.seeds)
        )
    publish_results(
        f"train/{arguments.variant}",
        {"runs.json": [read_json(Path(folder) / "result.json") for folder in folders]},
    )


if __name__ == "__main__":
    main()
