"""Train runs on a Slurm cluster: job arrays of job files, watched until every run has ended.

submitit writes the batch script and submits it; nothing is pickled. A task of an array is tasks/slurm_job.sh with the
job files of some runs, on a node that shares this folder. It needs neither Prefect nor MLflow. Runs are locked and
resumed as anywhere else, so that a job which is preempted, killed or submitted twice ends with the same bytes.

.slurm/ARRAY_TASK_0_log.out   the log of one task of an array
.slurm/ARRAY_submission.sh    its batch script
.slurm/LIST.txt               its job files, one task per line
.slurm/ARRAY.json             the array's number and its job files, by which a later call finds what is queued
"""

import shlex
import shutil
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor

from reread.storage.errors import InputError, PassingError
from reread.storage.files import read_json, remove_directory, write_json, write_text
from reread.storage.locks import run_locked
from reread.storage.run_folder import JOB, RunFolder
from reread.tracking.runs import ORIGIN
from reread.training.launcher import TrainingFailed, training_command
from tasks.prefect_run import is_retry
from tasks.progress import say
from tasks.provenance import provenance
from tasks.step import step

FOLDER = Path(".slurm")
SCRIPT = Path(__file__).with_name("slurm_job.sh")
POLL_SECONDS = 5.0
# How long a node's result may take to be seen here, by a file system that is shared.
SECONDS_UNTIL_SEEN = 60.0
# States of Slurm in which a task has ended and is not queued again. Slurm forgets it after MinJobAge, 5 minutes.
COMPLETED = "completed"
FAILED = frozenset(
    ("boot_fail", "cancelled", "deadline", "failed", "node_fail", "out_of_memory", "preempted", "revoked", "timeout")
)
MINUTES = 240
# Seconds before the time limit at which a job is queued again.
MARGIN = 60


@dataclass(frozen=True)
class Task:
    """One task of a submitted array, as squeue names it ("12_3"), with its job files."""

    name: str
    job_files: tuple[str, ...]

    @property
    def log(self) -> Path:
        return FOLDER / f"{self.name}_0_log.out"


class JobArrays(SlurmExecutor):
    """Submits a command as a job array. submitit checks the options and writes the batch script."""

    def submit_command(self, command: Sequence[str], tasks: int) -> str:
        """Submit and return the array's number; InputError where Slurm refuses it."""
        self.parameters["map_count"] = tasks
        try:
            return str(self._submit_command(shlex.join(["exec", *command])).job_id)
        except Exception as error:  # of submitit, with all that sbatch printed
            raise InputError(f"Slurm refuses the jobs: {' '.join(str(error).split())[-300:]}") from None


@step(task_run_name="train-on-slurm")
def train_on_slurm(
    jobs: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    runs_per_job: int = 1,
    fresh: bool = False,
    poll_seconds: float = POLL_SECONDS,
) -> None:
    """Train jobs of ``Plan.jobs`` that are not finished, and wait until they have ended.

    A run whose job is in Slurm's queue, as an earlier call submitted it, is waited for and not submitted again.
    options: of sbatch, as submitit names them (REREAD_SLURM). runs_per_job: trained by one process in turn.
    InputError for a wrong option and without Slurm; TrainingFailed where runs ended without a result.
    """
    queued = {file: task for task in queued_tasks() for file in task.job_files}
    if fresh and not is_retry():
        for job in jobs:
            if job_file(job) not in queued:
                remove_run(Path(job["run_directory"]))
    missing = [dict(job) for job in jobs if not is_finished(job)]
    new = [job for job in missing if job_file(job) not in queued]
    tasks = submit(new, options, runs_per_job) if new else []
    watched = {file: task for task in [*queued.values(), *tasks] for file in task.job_files}
    wait_for([job for job in missing if job_file(job) in watched], watched, poll_seconds)
    failed = [job for job in missing if not is_finished(job)]
    if failed:
        first = failed[0]
        raise TrainingFailed(
            f"{len(failed)} of {len(jobs)} runs ended on Slurm without a result, {first['variant']} seed "
            f"{first['seed']} first; its log: {watched[job_file(first)].log}; run again to submit them again"
        )


def submit(jobs: Sequence[dict[str, Any]], options: Mapping[str, Any], runs_per_job: int) -> list[Task]:
    """Write the job files, submit one array of them, and return its tasks."""
    if not shutil.which("sbatch"):
        raise InputError("Slurm's sbatch is not on this machine: start this where jobs are submitted, or train here")
    for job in jobs:
        write_json(Path(job_file(job)), job)
        # Read when the finished run is recorded in MLflow.
        write_json(Path(job["run_directory"]) / ORIGIN, provenance(job))
    files = [job_file(job) for job in jobs]
    groups = [files[start : start + runs_per_job] for start in range(0, len(files), runs_per_job)]
    listed = FOLDER / f"{uuid.uuid4().hex}.txt"
    write_text(listed, "".join("\t".join(group) + "\n" for group in groups))
    executor = JobArrays(FOLDER)
    executor.update_parameters(**parameters(jobs, options))
    array = executor.submit_command(["bash", str(SCRIPT), str(listed), *training_command(jobs[0])], len(groups))
    write_json(FOLDER / f"{array}.json", {"array": array, "tasks": groups})
    say(f"Slurm job {array}: {len(jobs)} runs in {len(groups)} tasks; they go on when this ends (scancel {array})")
    return [Task(f"{array}_{number}", tuple(group)) for number, group in enumerate(groups)]


def parameters(jobs: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch for an array, any task of which may train the largest of ``jobs``: the user's over
    ours. InputError for an unknown one."""
    ours: dict[str, Any] = {
        "job_name": f"reread-{jobs[0]['experiment']}",
        "time": MINUTES,
        "cpus_per_task": max(job["training"]["threads"] * job.get("processes", 1) for job in jobs),
        "use_srun": False,
        "stderr_to_stdout": True,
    }
    if gpus := max(job.get("processes", 1) if job["machine"].get("cuda") else 0 for job in jobs):
        ours["gpus_per_node"] = gpus
    more = {"requeue": True, "signal": f"B:USR1@{MARGIN}", **options.get("additional_parameters", {})}
    chosen = {**ours, **options, "additional_parameters": more}
    known = SlurmExecutor._valid_parameters()
    if unknown := sorted(set(chosen) - known):
        raise InputError(f"REREAD_SLURM has no option '{unknown[0]}': choose from {', '.join(sorted(known))}")
    return chosen


def wait_for(jobs: Sequence[dict[str, Any]], watched: Mapping[str, Task], poll_seconds: float) -> None:
    """Wait until each job has a result or has ended without one; report each change in one line.

    Slurm says whether a task has failed. One that is completed, or that Slurm has forgotten, may have written a result
    that is not seen here yet.
    """
    left, last, unseen_since = list(jobs), "", 0.0
    while True:
        states = task_states()
        left = [job for job in left if not is_finished(job)]
        if not left:
            return
        counts = Counter(states.get(watched[job_file(job)].name, COMPLETED) for job in left)
        line = ", ".join(
            [f"{len(jobs) - len(left)} finished", *(f"{count} {state}" for state, count in counts.items())]
        )
        if line != last:
            say(f"{len(jobs)} runs on Slurm: {line}")
            last = line
        if counts.keys() <= FAILED:
            return
        if not counts.keys() <= FAILED | {COMPLETED}:
            unseen_since = 0.0
        elif not unseen_since:
            unseen_since = time.monotonic()
        elif time.monotonic() - unseen_since > SECONDS_UNTIL_SEEN:
            return
        time.sleep(poll_seconds)


def task_states() -> dict[str, str]:
    """Return the state in lower case of each of this user's tasks that Slurm knows, by its name ("12_3").

    Tasks that have ended are among them: one that is being queued again is in no list of those that wait or run.
    """
    command = ["squeue", "--me", "--array", "--states=all", "--noheader", "--format=%F_%K %T"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except FileNotFoundError:
        return {}
    except subprocess.TimeoutExpired:
        raise PassingError("Slurm does not answer: squeue took more than a minute") from None
    if done.returncode:
        raise PassingError(f"Slurm does not answer: {done.stderr.strip()}")
    return {name: state.lower() for name, state in (line.split() for line in done.stdout.splitlines())}


def queued_tasks() -> list[Task]:
    """Return the tasks of this folder's arrays that have not ended."""
    records = [read_json(path) for path in sorted(FOLDER.glob("*.json"))]
    states = task_states() if records else {}
    tasks = [
        Task(f"{one['array']}_{number}", tuple(files)) for one in records for number, files in enumerate(one["tasks"])
    ]
    return [task for task in tasks if states.get(task.name, COMPLETED) not in FAILED | {COMPLETED}]


def job_file(job: Mapping[str, Any]) -> str:
    return str(Path(job["run_directory"]) / JOB)


def is_finished(job: Mapping[str, Any]) -> bool:
    folder = RunFolder(Path(job["run_directory"]))
    return folder.finished and not folder.damage()


def remove_run(run_directory: Path) -> None:
    """Remove the folder of a run; wait while another process trains it."""
    with run_locked(run_directory, say=say):
        if run_directory.exists():
            remove_directory(run_directory)
