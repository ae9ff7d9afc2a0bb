"""Locks of the runs that a process tracks, by which others know that it lives."""

import contextlib
import threading
from pathlib import Path

from storage.locks import file_lock


class RunLocks:
    """The locks of the runs that this process tracks, each with the thread that acquired it."""

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

    def release_thread(self) -> None:
        """Release the locks that this thread acquired."""
        for path in [path for path, (owner, _) in list(self.locks.items()) if owner == threading.get_ident()]:
            self.release(path)


RUN_LOCKS = RunLocks()
