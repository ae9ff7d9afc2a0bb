"""Which device a job has, how it computes there, and a record of what it was.

One job has one GPU: the first that is free by a lock on .locks/gpu-UUID.lock, which the kernel frees however the
process ends. The UUID, because a GPU's number changes with CUDA_VISIBLE_DEVICES. Without a GPU, the CPU.

A small network leaves a large GPU idle: REREAD_RUNS_A_GPU=N lets N processes share each, by N locks. What they compute
is the same; the pace of each is not.
"""

import contextlib
import itertools
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from storage.errors import InputError
from storage.git import checkout
from storage.locks import file_lock
from training.processes import ONE, Processes
from training.settings import Settings

LOCKS = Path(".locks")


@contextlib.contextmanager
def acquire_device(processes: Processes = ONE) -> Iterator[torch.device]:
    """Hold the device of this process for the block: the CPU, or a GPU of its own.

    Several processes get a GPU each, or all of them wait. InputError for a wrong REREAD_RUNS_A_GPU, and where a node
    has fewer GPUs than processes.
    """
    count = processes.local_world_size
    runs_a_gpu()
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    if count > torch.cuda.device_count():
        raise InputError(f"{count} processes need a GPU each, and there are {torch.cuda.device_count()}: start fewer")
    first = processes.local_rank == 0
    with acquire_gpus(count) if first else contextlib.nullcontext() as own:
        held = next(gpus for node, gpus in processes.gather((processes.node, own)) if node == processes.node and gpus)
        index = held[processes.local_rank]
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


@contextlib.contextmanager
def acquire_gpus(count: int) -> Iterator[list[int]]:
    """Hold the locks of ``count`` GPUs for the block, all or none; waits while other jobs leave fewer.

    Jobs spread: no GPU has a second one while another has none.
    """
    waits = False
    while True:
        with contextlib.ExitStack() as held:
            acquired: list[int] = []
            for place, index in itertools.product(range(runs_a_gpu()), range(torch.cuda.device_count())):
                if index not in acquired and held.enter_context(file_lock(_lock(index, place), blocking=False)):
                    acquired.append(index)
                if len(acquired) == count:
                    yield acquired
                    return
        if not waits:
            print("waiting: other jobs have the visible GPUs", file=sys.stderr)
            waits = True
        time.sleep(0.5)


def _lock(index: int, place: int) -> Path:
    uuid = torch.cuda.get_device_properties(index).uuid
    return LOCKS / (f"gpu-{uuid}-{place}.lock" if place else f"gpu-{uuid}.lock")


def runs_a_gpu() -> int:
    """How many jobs share a GPU: REREAD_RUNS_A_GPU, or 1."""
    given = os.environ.get("REREAD_RUNS_A_GPU", "1")
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"REREAD_RUNS_A_GPU={given} is not a number of runs: give a whole number from 1 up")
    return int(given)


def configure(settings: Settings) -> None:
    """Threads and determinism, for the whole process. Before the first work on a GPU."""
    torch.set_num_threads(settings.threads)
    if torch.get_num_interop_threads() != 1:  # may be set once in a process
        torch.set_num_interop_threads(1)
    deterministic = settings.deterministic or not torch.cuda.is_available()
    # cuBLAS reads it once a process, and a later job of this one may be deterministic.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(deterministic)
    # Filling fresh memory finds reads of it before it is written; ours are none, and it costs time.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = not deterministic


def mixed_precision(settings: Settings, device: torch.device) -> torch.dtype | None:
    """The half-precision type of the forward pass, or None for float32 throughout."""
    if settings.amp == "off" or (settings.amp == "auto" and device.type == "cpu"):
        return None
    if device.type == "cpu":
        raise InputError(f"amp is {settings.amp}, and there is no GPU: set amp to auto or off")
    if settings.amp == "auto":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}[settings.amp]


def environment(device: torch.device) -> dict[str, Any]:
    """What the run ran on: never part of a result, so that results can be equal where this is not."""
    gpu = device.type == "cuda"
    commit, dirty = checkout() or (None, None)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "runs_a_gpu": runs_a_gpu() if gpu else None,
        "driver": driver.read_text().splitlines()[0] if gpu and driver.is_file() else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "processes": Processes.of_environment().world_size,
        "host": socket.gethostname(),
        "git_commit": commit,
        "git_dirty": dirty,
    }
