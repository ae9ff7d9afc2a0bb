"""Tracking in a thread of its own, so that the next run does not wait until MLflow has the last one."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from reread.tracking.runs import shared_connection

Result = TypeVar("Result")


class Thread:
    """The thread that tracks; None outside of ``tracking_in_background``."""

    pool: ThreadPoolExecutor | None = None


@contextlib.contextmanager
def tracking_in_background() -> Iterator[None]:
    """Let ``track`` return at once within the block, which ends when all is logged. One flow at a time does so."""
    if Thread.pool is not None:
        yield
        return
    with shared_connection(), ThreadPoolExecutor(1, thread_name_prefix="tracking") as pool:
        Thread.pool = pool
        try:
            yield
        finally:
            Thread.pool = None


def is_in_background() -> bool:
    return Thread.pool is not None


def track(call: Callable[[], Result]) -> "Future[Result]":
    """Call in the thread that tracks, after all calls before it, or at once where there is none."""
    pool = Thread.pool
    if pool is not None:
        # Prefect's logger finds its run by the context.
        return pool.submit(contextvars.copy_context().run, call)
    done: Future[Result] = Future()
    done.set_result(call())
    return done
