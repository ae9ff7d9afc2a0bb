"""Start a training process, follow its events, and stop it when we are stopped.

Training runs in a process of its own (``python -m training JOB.json --events``): it imports torch and neither Prefect
nor MLflow, and a crash takes nobody along. When the launcher dies, however it dies, the pipe of events breaks and the
process ends itself; the next one goes on from its last whole epoch.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from storage.errors import InputError, WorkFailed
from storage.files import write_json


class TrainingFailed(WorkFailed):
    """The training process ended without a result. The message says how, and where its log is."""


class TrainingStopped(TrainingFailed):
    """The training process was stopped from outside, or we are being stopped; it can go on from its last epoch."""


# Exit codes of a process that was asked to end: SIGINT and SIGTERM, by its own exit or by the signal.
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
RUNNING: set[subprocess.Popen] = set()
STOPPING = threading.Event()


def stop_training() -> None:
    """End the training processes of this process, and let no other start: each can go on from its last epoch."""
    STOPPING.set()
    for process in list(RUNNING):
        process.terminate()


def run_training(job: dict[str, Any], on_event: Callable[[dict[str, Any]], None]) -> None:
    """Train ``job`` in a process of its own and hand each of its events to ``on_event``.

    Raises InputError when the job itself was refused (exit code 2), TrainingStopped when the process was asked to end,
    TrainingFailed when it died.
    """
    run_directory = Path(job["run_directory"])
    job_file = run_directory / "job.json"
    write_json(job_file, job)
    threads = str(job["training"]["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "training", str(job_file), "--events"]
    with open(run_directory / "log.txt", "a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
        RUNNING.add(process)
        if STOPPING.is_set():
            process.terminate()
        failure = None
        try:
            assert process.stdout is not None
            for line in process.stdout:
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
    if failure and code == 2:
        raise InputError(failure["message"])
    if code in STOPPED:
        raise TrainingStopped(
            f"{job['variant']} seed {job['seed']} was stopped; run again to go on from its last epoch"
        )
    how = _how(code, failure)
    raise TrainingFailed(f"{job['variant']} seed {job['seed']}: {how}; its log: {run_directory / 'log.txt'}")


def _how(code: int, failure: dict[str, Any] | None) -> str:
    if failure:
        return failure["message"]
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
        return f"the training process was ended by {name}{hint}; run again to go on from its last epoch"
    return f"the training process ended with exit code {code}"


def _stop(process: subprocess.Popen) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
