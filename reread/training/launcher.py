"""Start a training process, follow its events, and stop it when this process is stopped.

Training runs in a separate process (``python -m reread.training --serve FD``), which imports torch and neither Prefect
nor MLflow. Its crash ends no other process. It takes a job over a socket, with three open files: a pipe for its events,
log.txt of the run for everything that it prints, and the run's lock. When the launcher ends, for any reason, the pipe
breaks and the training process ends at its next event; until then the run stays locked.

Within ``kept_processes`` a process that has trained a run takes the next one: torch is imported once. One that failed,
or was made in another folder or environment, is not used again.

A job of several processes is started by torchrun, which holds the pipe and the lock for them, and starts them again
from the last checkpoint when one dies.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from reread.storage.errors import InputError, WorkFailed
from reread.storage.job import Job
from reread.storage.run_folder import LOG


class TrainingFailed(WorkFailed):
    """The training process ended without a result. The message has the reason and the path of its log."""


class TrainingStopped(TrainingFailed):
    """The training process was stopped from outside or with this process; it can resume from its last epoch."""


# Exit codes of a process that was stopped by SIGINT or SIGTERM: its own exit, or the signal.
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM)
# Of the processes of one run, after one of them died.
RESTARTS = 3
RUNNING: set[subprocess.Popen[bytes]] = set()
STOPPING = threading.Event()


def stop_training() -> None:
    """Stop the training processes of this process, and start no other. Each can be resumed from its last epoch."""
    STOPPING.set()
    for process in list(RUNNING):
        process.terminate()


def allow_training() -> None:
    """Allow training in this process again after ``stop_training``, for a new flow."""
    STOPPING.clear()


def run_training(job: Job, on_event: Callable[[dict[str, Any]], None], lock: TextIO | None = None) -> None:
    """Train ``job`` in a separate process and pass each of its events to ``on_event``.

    ``lock``: the open file of the run's lock where the caller holds it; else the training process acquires it.

    Raises InputError when the job itself was refused (exit code 2), TrainingStopped when the process was stopped,
    TrainingFailed when it died.
    """
    job.write()
    threads = str(job.training["threads"])
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1"}
    reading, writing = os.pipe()
    with open(reading, encoding="utf-8") as events, open(job.run_directory / LOG, "a", encoding="utf-8") as log:
        try:
            if job.processes > 1:
                running: Torchrun | Trainer = Torchrun(job, environment, writing, log, lock)
            else:
                running = take_trainer(environment, log)
                running.begin(job.file, writing, log, lock)
        finally:
            os.close(writing)
        RUNNING.add(running.process)
        if STOPPING.is_set():
            running.process.terminate()
        failure = None
        try:
            for line in events:
                event = json.loads(line)
                # torchrun may start the processes again after a failure.
                if event["event"] in ("started", "failed"):
                    failure = event if event["event"] == "failed" else None
                on_event(event)
            code = running.end()
        finally:
            RUNNING.discard(running.process)
            running.release()
    if code == 0:
        return
    if failure:
        # torchrun exits with 1 for whatever ended its processes.
        code = failure["code"]
    if failure and code == 2:
        raise InputError(failure["message"])
    if code in STOPPED or STOPPING.is_set():
        raise TrainingStopped(f"{job.name} was stopped; run again to resume it from its last epoch")
    how = _how(code, failure)
    raise TrainingFailed(f"{job.name}: {how}; its log: {job.run_directory / LOG}")


@dataclass
class Trainer:
    """A process that trains one job after the other, on one socket. ``environment`` and ``folder``: it was made in."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    environment: Mapping[str, str]
    folder: str
    usable: bool = False

    @classmethod
    def start(cls, environment: Mapping[str, str], log: TextIO) -> "Trainer":
        """Start a process that waits for jobs, and prints to ``log`` until it has one.

        It ends when the other end of its socket is closed.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-m", "reread.training", "--serve", str(its.fileno())]
            process = subprocess.Popen(command, env=environment, pass_fds=[its.fileno()], stdout=log, stderr=log)
        return cls(process, ours, environment, os.getcwd())

    def fits(self, environment: Mapping[str, str]) -> bool:
        """Return whether the process lives and was made as one would be made now."""
        return self.process.poll() is None and (self.environment, self.folder) == (environment, os.getcwd())

    def begin(self, job_file: Path, events: int, log: TextIO, lock: TextIO | None) -> None:
        """Send a job with its open files."""
        self.usable = False
        files = [events, log.fileno()] + ([lock.fileno()] if lock else [])
        # A process that has ended meanwhile sends no events, and its exit code says why.
        with contextlib.suppress(OSError):
            socket.send_fds(self.line, [os.fsencode(job_file)], files)

    def end(self) -> int:
        """Wait for the end of the job and return its exit code, that of the process where it ended."""
        with contextlib.suppress(OSError):
            if answer := self.line.recv(1):
                self.usable = answer[0] == 0
                return answer[0]
        return self.process.wait()

    def release(self) -> None:
        """Keep the process for another job, or end it."""
        with KEPT.changing:
            if self.usable and KEPT.on and not STOPPING.is_set():
                KEPT.idle.append(self)
                return
        self.close()

    def close(self) -> None:
        self.line.close()
        _stop(self.process)


@dataclass
class Kept:
    """The processes that wait for another job; ``on`` within ``kept_processes``."""

    on: bool = False
    idle: list[Trainer] = field(default_factory=list)
    changing: threading.Lock = field(default_factory=threading.Lock)


KEPT = Kept()


@contextlib.contextmanager
def kept_processes() -> Iterator[None]:
    """Let training processes take further jobs within the block, and end them after it."""
    KEPT.on = True
    try:
        yield
    finally:
        with KEPT.changing:
            KEPT.on = False
            idle, KEPT.idle = KEPT.idle, []
        for trainer in idle:
            trainer.close()


def take_trainer(environment: Mapping[str, str], log: TextIO) -> Trainer:
    """Return a process that is kept and fits, or a new one."""
    with KEPT.changing:
        for trainer in KEPT.idle:
            if trainer.fits(environment):
                KEPT.idle.remove(trainer)
                return trainer
    return Trainer.start(environment, log)


class Torchrun:
    """torchrun with the processes of one job; it inherits the pipe of events and the run's lock."""

    def __init__(
        self,
        job: Job,
        environment: Mapping[str, str],
        events: int,
        log: TextIO,
        lock: TextIO | None,
    ) -> None:
        command = [*training_command(job), str(job.file), "--events", str(events), *(["--locked"] if lock else [])]
        inherited = [events] + ([lock.fileno()] if lock else [])
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, pass_fds=inherited)

    def end(self) -> int:
        return self.process.wait()

    def release(self) -> None:
        _stop(self.process)


def training_command(job: Job) -> list[str]:
    """Return the command that trains job files of as many processes as ``job``'s, each on a GPU of its own.

    torchrun starts them again, from the last checkpoint, when one of several dies.
    """
    torchrun = [
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={job.processes}",
        f"--max-restarts={RESTARTS}",
        "-m",
    ]
    return [sys.executable, "-m", *(torchrun if job.processes > 1 else []), "reread.training"]


def _how(code: int, failure: dict[str, Any] | None) -> str:
    if failure:
        return failure["message"]
    if code < 0:
        name = signal.Signals(-code).name
        hint = " (the kernel does that when memory runs out)" if name == "SIGKILL" else ""
        return f"the training process was ended by {name}{hint}; run again to resume it from its last epoch"
    return f"the training process ended with exit code {code}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
