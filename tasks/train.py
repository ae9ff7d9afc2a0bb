"""Train one job, or reuse its finished run; as a command, all seeds of one variant or of all.

python -m tasks.train [--variant han] [--experiment default]
"""

import argparse
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

from reread.planning.keys import this_machine
from reread.planning.resolve import make_plan
from reread.planning.runs import RESULTS, run_records
from reread.planning.search import rounds
from reread.planning.tuning import refuse_untuned
from reread.storage.errors import InputError, command
from reread.storage.files import remove_directory, write_json
from reread.storage.job import Job
from reread.storage.locks import run_locked
from reread.tracking.recording import settle, unrecorded
from reread.tracking.runs import ORIGIN, open_tracking
from reread.tracking.times import Times, now
from reread.training.launcher import STOPPING, TrainingFailed, TrainingStopped, kept_processes, run_training
from reread.verdicts.verify import RUNS
from tasks.board import BOARD
from tasks.machine import refuse_other_machine
from tasks.prefect_run import is_retry
from tasks.preprocess import preprocess
from tasks.progress import RunProgress, say
from tasks.provenance import provenance
from tasks.recording import record, recording_in_background
from tasks.step import publishes, step

# A run that ends sooner is recorded when it ends, by fewer requests.
SECONDS_UNTIL_RECORDED = 0.5


@step(task_run_name="train-{job.variant}-{job.seed}")
def train(job: Job, fresh: bool = False, wait: bool = True) -> str:
    """Train a job of ``Plan.jobs``; return its folder in runs/.

    A finished run is reused and a stopped one resumed after its last epoch; ``fresh`` trains from the start, but not
    where Prefect tries again, so that what the first attempt trained is kept. Where another process trains the run, say
    which and ``wait`` for it, or raise InputError.
    InputError for a run that is not finished and whose job was made for another machine.
    """
    if STOPPING.is_set():
        raise TrainingStopped(f"{job.name} was not started: everything is being stopped")
    here = this_machine()
    remote = any(job.machine[part] != here[part] for part in here)
    # Another process may train the very same run (a deployment beside `dvc repro`): it is trained once.
    with run_locked(job.run_directory, wait, say) as lock, recording_in_background():
        if fresh and not is_retry() and job.run_directory.exists() and not remote:
            remove_directory(job.run_directory)
        run = job.run
        damage = run.damage() if run.finished else None
        if damage:
            say(f"{damage}: the run is restored from its last checkpoint")
        elif run.finished:
            record(job)
            BOARD.end(job, trained=False)
            say(f"{_summary(job)} (finished before, {job.run_directory})", summary=True)
            return str(job.run_directory)
        if remote:
            raise InputError(
                f"{job.name} is not trained, and REREAD_MACHINE names another machine than this: "
                f"`reread jobs --experiment {job.experiment}` writes the jobs to train there"
            )
        _train(job, lock)
    return str(job.run_directory)


@step(task_run_name="reuse-finished-runs")
def reuse(jobs: Sequence[Job]) -> list[str]:
    """Return the folders of the jobs' runs that are finished and whole; record in MLflow those that it lacks.

    One task for all of them, and one question to MLflow.
    """
    finished = [job for job in jobs if job.run.is_whole()]
    known = recorded_runs({job.experiment for job in finished})
    for job in finished:
        if (job.experiment, job.variant, job.run_key) not in known:
            record(job)
        BOARD.end(job, trained=False)
        say(f"{_summary(job)} (finished before, {job.run_directory})", summary=True)
    return [str(job.run_directory) for job in finished]


def recorded_runs(experiments: Iterable[str]) -> set[tuple[str, str, str]]:
    """Return (experiment, variant, run key) of the finished runs that MLflow has; none where it does not answer."""
    try:
        tracking = open_tracking()
        return {(name, *run) for name in experiments for run in tracking.recorded(name)}
    except Exception:  # whatever MLflow, its database or its server raise: recording a run reports it
        return set()


def _train(job: Job, lock: TextIO | None) -> None:
    write_json(job.run_directory / ORIGIN, provenance(job))
    times, began = Times.begin(job.run_directory), time.monotonic()
    progress = RunProgress(job)

    def follow(event: dict[str, Any]) -> None:
        progress(event)
        if event["event"] == "epoch":
            times.epochs[str(event["epoch"])] = now()
            times.write(job.run_directory)
        if time.monotonic() - began > SECONDS_UNTIL_RECORDED:
            record(job, live=True)

    try:
        run_training(job, follow, lock)
    except (InputError, TrainingFailed) as error:
        times.status = "KILLED" if isinstance(error, TrainingStopped) else "FAILED"
        times.message, times.ended = str(error).removeprefix(f"{job.name}: "), now()
        times.write(job.run_directory)
        record(job)
        how = "stopped" if isinstance(error, TrainingStopped) else "failed"
        progress.finish(f"{job.name}: {how}: {times.message}", trained=False)
        if isinstance(error, InputError):
            raise InputError(f"{job.name}: {times.message}") from None
        raise
    record(job)
    progress.finish(_summary(job))


def _summary(job: Job) -> str:
    result = job.run.require_result()
    return (
        f"{job.name}: validation {result['validation']['score']:.4f} "
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
    # A stage of DVC makes the results of this machine.
    plan = make_plan(arguments.experiment, [arguments.variant] if arguments.variant else None).without_published()
    if publishes(plan.name):
        refuse_other_machine()
    if os.environ.get("DVC_STAGE") and not arguments.variant:
        # DVC publishes what it trains: what `reread publish` would refuse is not trained, nor the test split read.
        refuse_untuned(plan)
    prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
    settle(plan.environment, say)
    runs: dict[tuple[Any, ...], Path] = {}
    with kept_processes(), recording_in_background(), ThreadPoolExecutor(plan.environment.workers) as pool:
        for jobs in rounds(plan, prepared):
            BOARD.expect(jobs, plan.environment.workers)
            for job, folder in zip(jobs, pool.map(train.fn, jobs), strict=True):
                runs[job.variant, job.seed, job.fold or 0] = Path(folder)
    if unrecorded(plan.environment.runs):
        settle(plan.environment, say)
    if publishes(plan.name):
        write_json(RESULTS / plan.name / RUNS, run_records(runs))


if __name__ == "__main__":
    main()
