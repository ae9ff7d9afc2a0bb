"""Runs a command and ends it with all its descendants: when it has exited, at its time limit, and when reread is gone.

python -P supervisor.py '{"command": ..., "folder": ..., "seconds": ..., "gpu": ..., "lock": DESCRIPTOR}'

Standard input is a pipe that reread holds open: its end means stop, also where reread was killed. Standard error is the
log. On standard output it writes, once nothing is left of the command, {"code": its exit code, "ended": null, "stopped"
or "time"}. It is a program of its own, and imports the standard library alone until a GPU is asked for.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Between SIGTERM and SIGKILL: a command may save what it has.
GRACE_SECONDS = 10.0
POLL_SECONDS = 0.05
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STOPPED, TIME = "stopped", "time"


class Command:
    """The processes of one command. On Linux orphans become children of this process, in whatever session they are."""

    def __init__(self, command: str, folder: str, lock: int, environment: dict[str, str]) -> None:
        # Whoever holds the lock's descriptor holds the lock: a run is not free while its command lives.
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command], cwd=folder, env={**os.environ, **environment}, pass_fds=[lock],
            stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr, start_new_session=True,
        )  # fmt: skip

    def end(self) -> None:
        """End every process that is left: by SIGTERM, and after the grace period by SIGKILL."""
        self.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        while self.is_left():
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
            time.sleep(POLL_SECONDS)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)
        for child in children():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(child, number)

    def is_left(self) -> bool:
        """Return whether a process of the command lives; those that have ended are reaped."""
        self.process.poll()
        for child in children():
            if child != self.process.pid:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(child, os.WNOHANG)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, 0)
            return True
        return bool(children())


def children() -> list[int]:
    """Return the process ids of this process's children (Linux; elsewhere none is known)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # PID (NAME) STATE PARENT ...: a name may contain anything.
            if int(stat.read_text(errors="replace").rpartition(")")[2].split()[1]) == os.getpid():
                members.append(int(stat.parent.name))
    return members


@contextlib.contextmanager
def leased(gpu: bool) -> Iterator[dict[str, str]]:
    """Hold a GPU of its own for the block, if one is asked for; yield the variables that show it to the command."""
    if not gpu:
        yield {}
        return
    sys.path.append(str(Path(__file__).resolve().parents[2]))
    import torch

    from reread.runtime.gpu_lease import acquire_gpus

    with acquire_gpus(1) as (index,):
        yield {"CUDA_VISIBLE_DEVICES": f"GPU-{torch.cuda.get_device_properties(index).uuid}"}


def main() -> None:
    job: dict[str, Any] = json.loads(sys.argv[1])
    asked, started = threading.Event(), threading.Event()

    def stop(*_: object) -> None:
        asked.set()
        if not started.is_set():
            os._exit(0)

    def wait_for_end() -> None:
        os.read(0, 1)
        stop()

    signal.signal(signal.SIGTERM, stop)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    threading.Thread(target=wait_for_end, daemon=True).start()
    with leased(job["gpu"]) as environment:
        started.set()
        command = Command(job["command"], job["folder"], job["lock"], environment)
        deadline = time.monotonic() + (job["seconds"] or float("inf"))
        ended = None
        while command.process.poll() is None and ended is None:
            ended = STOPPED if asked.wait(POLL_SECONDS) else TIME if time.monotonic() > deadline else None
        command.end()
        print(json.dumps({"code": command.process.wait(), "ended": ended}), flush=True)


if __name__ == "__main__":
    main()
