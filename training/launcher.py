"""Start a training process, follow its events, and stop it when this process is stopped.

Training runs in a separate process (``python -m training JOB.json --events FD``): it imports torch and neither Prefect
nor MLflow, and its crash ends no other process. Events have a separate pipe; everything that the process prints goes to
the run's log.txt. When the launcher ends, for any reason, the pipe breaks and the training process ends at its next
event. It inherits the run's lock, so that the run stays locked until then.

A job of several processes is started by torchrun, which holds the pipe and the lock for them, and starts them again
from the last checkpoint when one dies.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

from storage.errors import InputError, WorkFailed
from storage.files import write_json
from storage.run_folder import JOB, LOG


class TrainingFailed(WorkFailed):
    """The training process ended without a result. The message has the reason and the path of its log."""


class TrainingStopped(TrainingFailed):
    """The training process was stopped from outside or with this process; it can resume from its last epoch."""


# Exit codes of a process that was stopped by SIGINT or SIGTERM: its own exit, or the signal.
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
# Of the processes of one run, after one of them died.
RESTARTS = 3
RUNNING: set[subprocess.Popen] = set()
STOPPING = threading.Event()


def stop_training() -> None:
    """Stop the training processes of this process, and start no other. Each can be resumed from its last epoch."""
    STOPPING.set()
    for process in list(RUNNING):
        process.terminate()


def allow_training() -> None:
    """Allow training in this process again after ``stop_training``, for a new flow."""
    STOPPING.clear()


def run_training(job: dict[str, Any], on_event: Callable[[dict[str, Any]], None], lock: TextIO | None = None) -> None:
    """Train ``job`` in a separate process and pass each of its events to ``on_event``.

    ``lock``: the open file of the run's lock where the caller holds it; else the training process acquires it.

    Raises InputError when the job itself was refused (exit code 2), TrainingStopped when the process was stopped,
    TrainingFailed when it died.
    """
    run_directory = Path(job["run_directory"])
    job_file = run_directory / JOB
    write_json(job_file, job)
    threads = str(job["training"]["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    reading, writing = os.pipe()
    command = [*training_command(job), str(job_file), "--events", str(writing)]
    inherited = [writing]
    if lock is not None:
        command.append("--locked")
        inherited.append(lock.fileno())
    with open(reading, encoding="utf-8") as events, open(run_directory / LOG, "a", encoding="utf-8") as log:
        try:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, pass_fds=inherited)
        finally:
            os.close(writing)
        RUNNING.add(process)
        if STOPPING.is_set():
            process.terminate()
        failure = None
        try:
            for line in events:
                event = json.loads(line)
                if event["event"] == "failed":
                    failure = event
                on_event(event)
            code = process.wait()
        finally:
            _stop(process)
            RUNNING.discard(process)
    if code == 0:
        return
    if failure:
        # torchrun exits with 1 for whatever ended its processes.
        code = failure["code"]
    if failure and code == 2:
        raise InputError(failure["message"])
    if code in STOPPED or STOPPING.is_set():
        raise TrainingStopped(
            f"{job['variant']} seed {job['seed']} was stopped; run again to resume it from its last epoch"
        )
    how = _how(code, failure)
    raise TrainingFailed(f"{job['variant']} seed {job['seed']}: {how}; its log: {run_directory / LOG}")


def training_command(job: Mapping[str, Any]) -> list[str]:
    """Return the command that trains job files of as many processes as ``job``'s, each on a GPU of its own.

    torchrun starts them again, from the last checkpoint, when one of several dies.
    """
    several = job.get("processes", 1)
    torchrun = [
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={several}",
        f"--max-restarts={RESTARTS}",
        "-m",
    ]
    return [sys.executable, "-m", *(torchrun if several > 1 else []), "training"]


def _how(code: int, failure: dict[str, Any] | None) -> str:
    if failure:
        return failure["message"]
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
        return f"the training process was ended by {name}{hint}; run again to resume it from its last epoch"
    return f"the training process ended with exit code {code}"


def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
