"""Train a job in processes that are killed at chosen moments, and train it to its end after each.

python -m tests.reread.training.killing JOB.json operations    before each operation of a save on a file
python -m tests.reread.training.killing JOB.json moments 20    at 20 moments that are drawn from a seed

At every second operation the power is cut: all that was not flushed to disk is lost as well.

Prints one JSON object a kill: where it was, the exit code of the process that went on, what it printed on stderr, and
whether it ended with the bytes of a run that was left alone. Processes are forked, since torch takes seconds to import.
"""

import importlib
import json
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import models
from reread.training.device import configure
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.reread.training.outcome import outcome

CHANGES = ("os.rename", "os.link", "os.mkdir", "os.remove", "os.rmdir", "os.chmod", "ctypes.dlsym")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class Operations:
    """Counts the operations that change files, and ends the process before one of them."""

    def __init__(self, killed_at: int | None, folder: Path) -> None:
        self.seen: list[str] = []
        self.killed_at, self.folder = killed_at, folder
        self.flushed: set[int] = {path.stat().st_ino for path in folder.rglob("*")}
        self.fsync = os.fsync
        os.fsync = self.flush
        sys.addaudithook(self.audit)

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING:
            self.count(f"open {arguments[0]}")
        elif event in CHANGES:
            self.count(f"{event} {arguments[0]}")

    def flush(self, descriptor: int) -> None:
        self.count(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        self.fsync(descriptor)
        self.flushed.add(os.fstat(descriptor).st_ino)

    def count(self, operation: str) -> None:
        if len(self.seen) == self.killed_at:
            self.killed_at = None
            if len(self.seen) % 2:
                self.cut_power()
            os.kill(os.getpid(), signal.SIGKILL)
        self.seen.append(operation)

    def cut_power(self) -> None:
        """Leave zeros where the kernel had not written yet, as a file system does that keeps the size alone."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path.stat().st_ino not in self.flushed:
                path.write_bytes(bytes(path.stat().st_size))


def forked(work: Callable[[], None], errors: Path, kill_after: float | None = None) -> int:
    """Do ``work`` in a process of its own with its stderr in a file; return its exit code, negative for a signal."""
    process = os.fork()
    if process == 0:
        os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(process, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    path, how, *rest = sys.argv[1:]
    job, given = TrainingJob.read(Path(path)), json.loads(Path(path).read_text())
    folder, errors = job.run_directory, Path(path).with_suffix(".errors")

    def train() -> None:
        run(job, given, Progress(job, None))

    def counted(killed_at: int | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        operations = Operations(killed_at, folder)
        train()
        errors.with_suffix(".operations").write_text("\n".join(operations.seen))

    # What each process would spend seconds on: optimisers import the compiler of torch, and the source is read.
    importlib.import_module("torch._dynamo")
    configure(job.training)
    models.network_source(job.model, job.network)
    start = time.monotonic()
    assert forked(train, errors) == 0, errors.read_text()
    seconds = time.monotonic() - start
    expected = outcome(folder)
    if how == "moments":
        generator = random.Random(20)
        moments = sorted(generator.uniform(0, seconds) for _ in range(int(rest[0])))
        kills = [(f"{moment:.3f} s of {seconds:.3f} s", train, moment) for moment in moments]
    else:
        shutil.rmtree(folder)
        assert forked(counted, errors) == 0, errors.read_text()
        seen = errors.with_suffix(".operations").read_text().splitlines()
        # From the last epoch on: the saves before it have the same operations.
        first = next(number for number, line in enumerate(seen) if "checkpoints/.000003" in line) - 5
        kills = [(f"{n}: {seen[n]}", partial(counted, n), None) for n in range(first, len(seen))]
    for where, work, kill_after in kills:
        shutil.rmtree(folder)
        code = forked(work, errors, kill_after)
        finished = (folder / "result.json").exists()
        resumed = forked(train, errors)
        report = {
            "killed at": where,
            "killed": code == -signal.SIGKILL,
            "finished": finished,
            "code": resumed,
            "errors": errors.read_text(),
            "equal": resumed == 0 and outcome(folder) == expected,
        }
        print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
