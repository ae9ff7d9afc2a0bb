"""Train runs on a Slurm cluster, from job files. They resume there as here, and end with the same bytes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reread.storage.files import remove_directory, write_json
from reread.storage.job import Job
from reread.storage.locks import run_locked
from reread.tracking.runs import ORIGIN
from reread.training.launcher import TrainingFailed, training_command
from tasks.prefect_run import is_retry
from tasks.progress import say
from tasks.provenance import provenance
from tasks.slurm import POLL_SECONDS, Run, queued_tasks, refuse_no_slurm, run_on_slurm, sbatch_options
from tasks.step import step

FOLDER = Path(".slurm")


@step(task_run_name="train-on-slurm")
def train_on_slurm(
    jobs: Sequence[Job],
    options: Mapping[str, Any],
    runs_per_job: int = 1,
    fresh: bool = False,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Train jobs of ``Plan.jobs`` that are not finished, and wait until they have ended.

    options: of sbatch, as submitit names them (REREAD_SLURM). runs_per_job: trained by one process in turn.
    InputError for a wrong option and without Slurm; TrainingFailed where runs ended without a result.
    """
    missing = [job for job in jobs if fresh or not job.run.is_whole()]
    if not missing:
        return
    refuse_no_slurm()
    queued = {file for task in queued_tasks(FOLDER) for file in task.files}
    for job in (job for job in missing if str(job.file) not in queued):
        if fresh and not is_retry():
            remove_run(job.run_directory)
        if not job.run.is_whole():
            write_job(job)
    runs = [Run(str(job.file), job.run.is_whole) for job in missing]
    chosen = parameters(missing, options)
    logs = run_on_slurm(runs, training_command(missing[0]), chosen, FOLDER, runs_per_job, poll_seconds)
    failed = [job for job in missing if str(job.file) in logs]
    if failed:
        first = failed[0]
        raise TrainingFailed(
            f"{len(failed)} of {len(jobs)} runs ended on Slurm without a result, {first.name} first; its log: "
            f"{logs[str(first.file)]}; run again to submit them again"
        )


def write_job(job: Job) -> None:
    """Write a job's file, and the origin that is read when the finished run is recorded in MLflow."""
    job.write()
    write_json(job.run_directory / ORIGIN, provenance(job))


def parameters(jobs: Sequence[Job], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch for an array, any task of which may train the largest of ``jobs``."""
    ours: dict[str, Any] = {
        "job_name": f"reread-{jobs[0].experiment}",
        "cpus_per_task": max(job.training["threads"] * job.processes for job in jobs),
    }
    if gpus := max(job.processes if job.machine.get("cuda") else 0 for job in jobs):
        ours["gpus_per_node"] = gpus
    return sbatch_options(ours, options)


def remove_run(run_directory: Path) -> None:
    """Remove the folder of a run; wait while another process trains it."""
    with run_locked(run_directory, say=say):
        if run_directory.exists():
            remove_directory(run_directory)
