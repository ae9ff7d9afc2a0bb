"""Record runs in MLflow while they train, in a thread of its own: no run waits for MLflow, and none for another."""

import contextlib
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from reread.storage.job import Job
from reread.tracking.recording import Tracker
from tasks.progress import say


class Recorder:
    """The thread that records, and its tracker; None outside of ``recording_in_background``."""

    current: tuple[ThreadPoolExecutor, Tracker] | None = None


@contextlib.contextmanager
def recording_in_background() -> Iterator[None]:
    """Allow ``record`` within the block, which ends when all is recorded. A block within another one does nothing."""
    if Recorder.current is not None:
        yield
        return
    with Tracker(say, strict=False) as tracker, ThreadPoolExecutor(1, thread_name_prefix="tracking") as pool:
        Recorder.current = pool, tracker
        try:
            yield
        finally:
            Recorder.current = None


def record(job: Job, live: bool = False) -> None:
    """Record a run as ``Tracker.record`` does, after all that waits for the thread: epochs that came together go
    together, since what is recorded costs no request again."""
    assert Recorder.current is not None, "outside of recording_in_background"
    pool, tracker = Recorder.current
    # Prefect's logger finds its run by the context.
    pool.submit(contextvars.copy_context().run, tracker.record, job, live=live)
