"""Stops the servers of ``reread ui``, ``serve`` and ``run`` when their parent ends, by whatever cause.

The parent writes the process id of each server to standard input and closes it to have them stopped, last one first.
The kernel closes it where the parent was killed.
"""

import contextlib
import os
import sys
import time
from collections.abc import Iterable

import psutil

STOP_SECONDS = 15


def stop(server: psutil.Process) -> None:
    """Ask a server to end, wait, and kill what is left of it and of the processes that it started.

    The flow runs of a worker, which lead process groups, end first, while Prefect's server still answers. The worker
    itself would kill them, and Prefect and MLflow would show them as running forever. A flow run waits for its
    training processes, and may start another before it reacts to the signal.
    """
    flow_runs = [child for child in server.children() if os.getpgid(child.pid) == child.pid]
    each("terminate", flow_runs)
    deadline = time.monotonic() + STOP_SECONDS
    while (running := psutil.wait_procs(flow_runs, 0.2)[1]) and time.monotonic() < deadline:
        for flow_run in running:
            with contextlib.suppress(psutil.NoSuchProcess):
                each("terminate", flow_run.children())
    processes = [server, *server.children(recursive=True)]
    server.terminate()
    each("kill", psutil.wait_procs(processes, STOP_SECONDS)[1])


def each(action: str, processes: Iterable[psutil.Process]) -> None:
    """Call a method of each process that has not ended."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            getattr(process, action)()


if __name__ == "__main__":
    servers = []
    for line in sys.stdin:
        with contextlib.suppress(psutil.NoSuchProcess):
            servers.append(psutil.Process(int(line)))
    for server in reversed(servers):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            stop(server)
