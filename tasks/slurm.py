"""Run files on a Slurm cluster: job arrays, watched until what they run has ended.

submitit writes the batch script and submits it; nothing is pickled. A task of an array is tasks/slurm_job.sh with the
files of some runs, on a node that shares this folder. It needs neither Prefect nor MLflow. Runs are locked as anywhere
else, so that a job which is submitted twice makes each run once.

ARRAY_TASK_0_log.out   the log of one task of an array
ARRAY_submission.sh    its batch script
LIST.txt               its files, one task per line
ARRAY.json             the array's number and its files, by which a later call finds what is queued
"""

import shlex
import shutil
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from submitit import SlurmExecutor

from reread.storage.errors import InputError, TransientError
from reread.storage.files import read_json, write_json, write_text
from tasks.progress import say

SCRIPT = Path(__file__).with_name("slurm_job.sh")
POLL_SECONDS = 5.0
# How long a node's result may take to be seen here, by a file system that is shared.
SECONDS_UNTIL_SEEN = 60.0
PENDING = "pending"
# States of Slurm in which a task has ended and is not queued again. Slurm forgets it after MinJobAge, 5 minutes.
COMPLETED = "completed"
UNKNOWN = "no longer known to Slurm"
FAILED = frozenset(
    ("boot_fail", "cancelled", "deadline", "failed", "node_fail", "out_of_memory", "preempted", "revoked", "timeout")
)
MINUTES = 240
# Seconds before the time limit at which a job is queued again.
MARGIN = 60


@dataclass(frozen=True)
class Run:
    """A run on a cluster. file: an argument of the task's command. finished: returns whether the run has a result."""

    file: str
    finished: Callable[[], bool]


@dataclass(frozen=True)
class Task:
    """One task of a submitted array, as squeue names it ("12_3"), with the files of its runs and its log."""

    name: str
    files: tuple[str, ...]
    log: Path


class JobArrays(SlurmExecutor):
    """Submits a command as a job array. submitit checks the options and writes the batch script."""

    def submit_command(self, command: Sequence[str], tasks: int) -> str:
        """Submit and return the array's number; InputError where Slurm refuses it."""
        self.parameters["map_count"] = tasks
        try:
            return str(self._submit_command(shlex.join(["exec", *command])).job_id)
        except Exception as error:  # of submitit, with all that sbatch printed
            raise InputError(f"Slurm refuses the jobs: {' '.join(str(error).split())[-300:]}") from None


def run_on_slurm(
    runs: Sequence[Run],
    command: Sequence[str],
    options: Mapping[str, Any],
    folder: Path,
    per_task: int = 1,
    poll_seconds: float = POLL_SECONDS,
) -> dict[str, Path]:
    """Run what is not finished, and wait until it has ended. Return the log of each run without a result, by its file.

    A run that an earlier call submitted and that is in Slurm's queue is waited for and not submitted again. options:
    those of ``sbatch_options``. folder: of logs and records of arrays. per_task: runs that a task takes in turn.
    """
    queued = {file: task for task in queued_tasks(folder) for file in task.files}
    missing = [run for run in runs if not run.finished()]
    new = [run.file for run in missing if run.file not in queued]
    tasks = submit(new, command, options, folder, per_task) if new else []
    watched = {**queued, **{file: task for task in tasks for file in task.files}}
    wait_for(missing, watched, poll_seconds)
    return {run.file: watched[run.file].log for run in missing if not run.finished()}


def refuse_no_slurm() -> None:
    """Raise InputError where Slurm is not installed."""
    if not shutil.which("sbatch"):
        raise InputError("Slurm's sbatch is not on this machine: start this where jobs are submitted, or run it here")


def submit(
    files: Sequence[str], command: Sequence[str], options: Mapping[str, Any], folder: Path, per_task: int = 1
) -> list[Task]:
    """Submit one array whose tasks call ``command`` with ``per_task`` files each, and return its tasks."""
    groups = [list(files[start : start + per_task]) for start in range(0, len(files), per_task)]
    listed = folder / f"{uuid.uuid4().hex}.txt"
    write_text(listed, "".join("\t".join(group) + "\n" for group in groups))
    executor = JobArrays(folder)
    executor.update_parameters(**options)
    array = executor.submit_command(["bash", str(SCRIPT), str(listed), *command], len(groups))
    write_json(folder / f"{array}.json", {"array": array, "tasks": groups})
    say(f"Slurm job {array}: {len(files)} runs in {len(groups)} tasks; they go on when this ends (scancel {array})")
    return tasks_of(folder, array, groups)


def tasks_of(folder: Path, array: str, groups: Sequence[Sequence[str]]) -> list[Task]:
    """Return the tasks of an array."""
    names = [f"{array}_{number}" for number in range(len(groups))]
    return [Task(name, tuple(files), folder / f"{name}_0_log.out") for name, files in zip(names, groups, strict=True)]


def sbatch_options(ours: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of sbatch for an array, by submitit's names: the user's ``options`` (REREAD_SLURM) over
    ``ours`` and the usual ones. InputError for an unknown one."""
    usual = {"time": MINUTES, "use_srun": False, "stderr_to_stdout": True}
    more = {"requeue": True, "signal": f"B:USR1@{MARGIN}", **options.get("additional_parameters", {})}
    chosen = {**usual, **ours, **options, "additional_parameters": more}
    known = SlurmExecutor._valid_parameters()
    if unknown := sorted(set(chosen) - known):
        raise InputError(f"REREAD_SLURM has no option '{unknown[0]}': choose from {', '.join(sorted(known))}")
    return chosen


def wait_for(runs: Sequence[Run], watched: Mapping[str, Task], poll_seconds: float) -> None:
    """Wait until each run has a result or its task has ended without one; report each change in one line.

    Slurm says whether a task has failed. One that is completed, or that Slurm has forgotten, may have written a result
    that is not seen here yet.
    """
    left, last, unseen_since = list(runs), "", 0.0
    started: set[str] = set()
    while True:
        listed = task_states()
        left = [run for run in left if not run.finished()]
        if not left:
            return
        started |= {name for name, state in listed.items() if state != PENDING}
        names = [watched[run.file].name for run in left]
        # Of tasks that were cancelled before they started, squeue lists the array alone, or nothing.
        arrays = {name: listed.get(f"{name.partition('_')[0]}_N/A", UNKNOWN) for name in names if name not in started}
        states = {**arrays, **listed}
        unknown = {name for name in names if states.get(name, UNKNOWN) == UNKNOWN}
        states |= accounted_states(unknown) if unknown else {}
        counts = Counter(states.get(name, UNKNOWN) for name in names)
        line = ", ".join(
            [f"{len(runs) - len(left)} finished", *(f"{count} {state}" for state, count in counts.items())]
        )
        if line != last:
            say(f"{len(runs)} runs on Slurm: {line}")
            last = line
        if counts.keys() <= FAILED:
            return
        if not counts.keys() <= FAILED | {COMPLETED, UNKNOWN}:
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
        raise TransientError("Slurm does not answer: squeue took more than a minute") from None
    if done.returncode:
        raise TransientError(f"Slurm does not answer: {done.stderr.strip()}")
    return {name: state.lower() for name, state in (line.split() for line in done.stdout.splitlines())}


def accounted_states(names: Iterable[str]) -> dict[str, str]:
    """Return the states of those tasks that Slurm's accounting knows, where the cluster has one."""
    command = ["sacct", "--allocations", "--noheader", "--parsable2", "--format=JobID,State", "--jobs"]
    try:
        done = subprocess.run([*command, ",".join(names)], capture_output=True, text=True, timeout=60)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return {}
    lines = (line.split("|") for line in done.stdout.splitlines() if done.returncode == 0)
    # "CANCELLED by 1000"
    return {name: state.split()[0].lower() for name, state in lines}


def queued_tasks(folder: Path) -> list[Task]:
    """Return the tasks of a folder's arrays that have not ended."""
    records = [read_json(path) for path in sorted(folder.glob("*.json"))]
    states = task_states() if records else {}
    tasks = [task for record in records for task in tasks_of(folder, record["array"], record["tasks"])]
    return [task for task in tasks if states.get(task.name, UNKNOWN) not in FAILED | {COMPLETED, UNKNOWN}]
