"""Train one job, or reuse its finished run; as a command, all seeds of one variant or of all.

python -m tasks.train [--variant han] [--experiment default]
"""

import argparse
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from planning.keys import this_machine
from planning.plan import make_plan
from planning.runs import RESULTS, RUNS, run_records
from storage.errors import InputError, command
from storage.files import remove_directory, write_json
from storage.locks import run_locked
from storage.run_folder import RunFolder
from tasks.board import BOARD, name_of
from tasks.machine import refuse_other_machine
from tasks.preprocess import preprocess
from tasks.progress import RunProgress, say
from tasks.provenance import provenance
from tasks.step import publishes, step
from tracking.journal import TrackedRun, Tracker, settle, waiting
from training.launcher import STOPPING, TrainingFailed, TrainingStopped, run_training
from training.state import COLUMNS


@step(task_run_name="train-{job[variant]}-{job[seed]}")
def train(job: Mapping[str, Any], fresh: bool = False, wait: bool = True) -> str:
    """Train a job of ``Plan.jobs``; return its folder in runs/.

    A finished run is reused and a stopped one resumed after its last epoch; ``fresh`` trains from the start. Where
    another process trains the run, say which and ``wait`` for it, or raise InputError.
    InputError for a run that is not finished and whose job was made for another machine.
    """
    job = dict(job)
    name = name_of(job)
    if STOPPING.is_set():
        raise TrainingStopped(f"{name} was not started: everything is being stopped")
    run_directory = Path(job["run_directory"])
    here = this_machine()
    remote = any(job["machine"][part] != here[part] for part in here)
    # Another process may train the very same run (a deployment beside `dvc repro`): it is trained once.
    with run_locked(run_directory, wait, say) as lock:
        if fresh and run_directory.exists() and not remote:
            remove_directory(run_directory)
        run = RunFolder(run_directory)
        damage = run.damage() if run.finished else None
        if damage:
            say(f"{damage}: the run is restored from its last checkpoint")
        elif run.finished:
            Tracker(say, strict=False).record(run_directory, None, job)
            BOARD.end(job, trained=False)
            say(f"{_summary(job)} (finished before, {run_directory})", summary=True)
            return str(run_directory)
        if remote:
            raise InputError(
                f"{name} is not trained, and REREAD_MACHINE names another machine than this: "
                f"`reread jobs --experiment {job['experiment']}` writes the jobs to train there"
            )
        _train(job, lock)
    return str(run_directory)


def _train(job: dict[str, Any], lock: TextIO | None) -> None:
    tracked = TrackedRun(job, provenance(job), say)
    progress = RunProgress(job)

    def follow(event: dict[str, Any]) -> None:
        progress(event)
        if event["event"] == "epoch":
            tracked.log_epoch({name: event[name] for name in COLUMNS})

    try:
        run_training(job, follow, lock)
    except (InputError, TrainingFailed) as error:
        stopped = isinstance(error, TrainingStopped)
        tracked.fail("KILLED" if stopped else "FAILED", str(error))
        progress.finish(f"{name_of(job)}: {'stopped' if stopped else 'failed'}: {error}", trained=False)
        raise
    tracked.finish()
    progress.finish(_summary(job))


def _summary(job: dict[str, Any]) -> str:
    result = RunFolder(Path(job["run_directory"])).require_result()
    return (
        f"{name_of(job)}: validation {result['validation']['score']:.4f} "
        f"at epoch {result['best_epoch']} of {result['epochs']}"
    )


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.train", description="Train all seeds of one variant or of all."
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variant", help="default: all variants")
    arguments = parser.parse_args()
    plan = make_plan(arguments.experiment, [arguments.variant] if arguments.variant else None)
    if publishes(plan.name):
        refuse_other_machine()
    prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
    settle(plan.environment.runs, say)
    jobs = plan.jobs(prepared)
    BOARD.expect(jobs, plan.environment.workers)
    with ThreadPoolExecutor(plan.environment.workers) as pool:
        folders = list(pool.map(train.fn, jobs))
    if waiting(plan.environment.runs):
        settle(plan.environment.runs, say)
    if publishes(plan.name):
        runs = {(job["variant"], job["seed"]): Path(folder) for job, folder in zip(jobs, folders, strict=True)}
        write_json(RESULTS / plan.name / RUNS, run_records(runs))


if __name__ == "__main__":
    main()
