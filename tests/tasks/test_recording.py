"""Recording in a thread: in the caller's context, in the order of the calls, finished when the block ends."""

import contextvars
import threading
from pathlib import Path

from reread.storage.job import Job
from reread.tracking.recording import Tracker
from tasks.recording import record, recording_in_background

NAME = contextvars.ContextVar("name", default="none")


def test_runs_are_recorded_in_one_thread_and_nobody_waits(monkeypatch):
    calls, going = [], threading.Event()
    about = {"experiment": "trial", "variant": "han", "model": "han", "data": "snippets", "seed": 0}
    job = Job(**about, run_key="han", network={}, training={}, prepared=Path("han"), run_directory=Path("runs/han"))

    def call(tracker, job, evaluation_directory=None, live=False):
        going.wait()
        calls.append((job.variant, live, NAME.get(), threading.current_thread().name))

    monkeypatch.setattr(Tracker, "record", call)
    with recording_in_background():
        NAME.set("first")
        with recording_in_background():
            record(job, live=True)
        NAME.set("second")
        record(job)
        assert not calls
        going.set()
    assert calls == [("han", True, "first", "tracking_0"), ("han", False, "second", "tracking_0")]
