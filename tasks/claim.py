"""Run the commands of a claim: each as a task that logs in MLflow, which decides nothing, or on a Slurm cluster."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reread.arms.jobs import Job, write_job
from reread.arms.revisions import ignore_in_git
from reread.arms.run import RunFailed, Running, Say, run
from reread.arms.scores import read_metrics
from reread.storage.files import remove_directory
from reread.storage.locks import run_locked
from reread.storage.run_folder import JOB, RESULT, TIMING
from reread.tracking.runs import open_tracking
from tasks import SET_HERE
from tasks.progress import say
from tasks.slurm import Run, queued_tasks, refuse_no_slurm, run_on_slurm, sbatch_options
from tasks.step import step

FOLDER = "slurm"


@step(task_run_name="{job.arm}-{job.seed}")
def run_command(job: Job, running: Running, say: Say, fresh: bool, experiment: str) -> None:
    """Run a job as ``reread.arms.run.run`` does, and log it in MLflow's ``experiment`` when it has finished."""
    run(job, running, say, fresh)
    files = [*(job.directory / name for name in (JOB, RESULT, TIMING)), job.log]
    try:
        open_tracking(Path()).command(experiment, job.record(), read_metrics(job), files)
    except Exception as error:  # whatever MLflow, its database or its server raise
        say(f"{job.name} is not in MLflow ({type(error).__name__}: {str(error).partition(chr(10))[0]})")


@step(task_run_name="commands-on-slurm")
def run_commands_on_slurm(
    jobs: Sequence[Job],
    options: Mapping[str, Any],
    runs_per_job: int = 1,
    fresh: bool = False,
) -> None:
    """Run jobs that are not finished on a Slurm cluster, and wait until they have ended.

    options: of sbatch, as submitit names them (REREAD_SLURM). InputError for a wrong option and without Slurm;
    RunFailed where runs ended without scores.
    """
    refuse_no_slurm()
    folder = jobs[0].runs.parent / FOLDER
    ignore_in_git(folder.parent)
    files = {job.key: folder / "jobs" / f"{job.key}.json" for job in jobs}
    queued = {file for task in queued_tasks(folder) for file in task.files}
    for job in (job for job in jobs if str(files[job.key]) not in queued):
        with run_locked(job.directory, say=say):
            if job.directory.exists() and (fresh or (job.finished and job.damage())):
                remove_directory(job.directory)
        write_job(job, files[job.key])
    gpus = {"gpus_per_node": 1} if any(job.settings.gpu for job in jobs) else {}
    chosen = sbatch_options({"job_name": "reread-claim", **gpus}, options)
    # A command sees the variables of its user: not those that this process has set for itself.
    command = ["env", *(f"--unset={name}" for name in sorted(SET_HERE)), sys.executable, "-m", "reread.arms"]
    runs = [Run(str(files[job.key]), lambda job=job: job.finished) for job in jobs]  # type: ignore[misc]
    logs = run_on_slurm(runs, command, chosen, folder, runs_per_job)
    if failed := [job for job in jobs if str(files[job.key]) in logs]:
        log = failed[0].log if failed[0].log.exists() else logs[str(files[failed[0].key])]
        raise RunFailed(
            f"{len(failed)} of {len(jobs)} runs ended on Slurm without scores, {failed[0].name} first; its log: {log}; "
            "run again to submit them again"
        )
