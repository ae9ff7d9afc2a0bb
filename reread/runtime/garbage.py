"""Garbage collection in a process that imports much and makes little garbage."""

import atexit
import gc


def collect_less() -> None:
    """Let this process search for garbage less often, and not when it ends.

    All that is imported stays: with Python's thresholds a sixth of a command's start goes into searching it, and two
    more searches at the end of `reread run` take 1.7 s.
    """
    gc.set_threshold(50_000, 20, 100)
    atexit.register(gc.freeze)
