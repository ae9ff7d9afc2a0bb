"""Threads and deterministic kernels, for the whole process or for one block."""

import contextlib
import os
from collections.abc import Iterator

import torch


def set_determinism(on: bool) -> None:
    """Use repeatable kernels for the whole process, and refuse an operation that has none; or allow any kernel.

    Call it before the first work on a GPU.
    """
    # cuBLAS reads the variable once per process, and a later job of this process may need it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    _set_algorithms(on)
    # Filling fresh memory finds reads of uninitialised memory. Our code has none, and filling costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = not on


@contextlib.contextmanager
def determinism(on: bool = True) -> Iterator[None]:
    """Apply ``set_determinism`` to the block and restore the process's settings afterwards."""
    algorithms, benchmark = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    filling = torch.utils.deterministic.fill_uninitialized_memory
    set_determinism(on)
    try:
        yield
    finally:
        _set_algorithms(algorithms)
        torch.backends.cudnn.benchmark = benchmark
        torch.utils.deterministic.fill_uninitialized_memory = filling


def _set_algorithms(deterministic: bool) -> None:
    """Do as torch.use_deterministic_algorithms, which imports torch's compiler for its setting: two seconds."""
    torch.set_deterministic_debug_mode("error" if deterministic else "default")


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Use ``number`` threads in the block. With one, sums have one order, and processes do not slow each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
