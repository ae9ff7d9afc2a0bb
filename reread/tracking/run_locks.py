"""Locks of the runs that a process tracks, by which others know that it lives."""

import contextlib
import threading
from pathlib import Path

from reread.storage.locks import file_lock


class RunLocks:
    """The locks EXPERIMENT_ID-RUN_KEY.lock of the runs that this process tracks, each with the thread that acquired it.

    One thread may track several runs at once, so each run is released by its key.
    """

    def __init__(self) -> None:
        self.locks: dict[Path, tuple[int, contextlib.ExitStack]] = {}

    def acquire(self, path: Path) -> None:
        """Acquire the lock of a run; wait while another process or thread tracks it. A thread may repeat it."""
        owner, _ = self.locks.get(path, (None, None))
        if owner == threading.get_ident():
            return
        stack = contextlib.ExitStack()
        stack.enter_context(file_lock(path))
        self.locks[path] = (threading.get_ident(), stack)

    def release(self, path: Path) -> None:
        _, stack = self.locks.pop(path, (None, None))
        if stack:
            stack.close()

    def release_run(self, run_key: str) -> None:
        """Release the locks of one run that this thread acquired, whichever MLflow experiment it is logged to."""
        for path, (owner, _) in list(self.locks.items()):
            if owner == threading.get_ident() and path.name.endswith(f"-{run_key}.lock"):
                self.release(path)


RUN_LOCKS = RunLocks()
