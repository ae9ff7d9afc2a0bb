"""One job per GPU, by a file lock that the kernel frees however the process ends.

The lock is .locks/gpu-UUID.lock. It names the UUID because a GPU's number changes with CUDA_VISIBLE_DEVICES.
A small network leaves a large GPU idle: with REREAD_RUNS_A_GPU=N, N processes share each GPU by N locks. Sharing
changes the pace of a process and not its results.
"""

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from storage.errors import InputError
from storage.files import file_lock

LOCKS = Path(".locks")
POLL_SECONDS = 0.5


@contextlib.contextmanager
def acquire_gpu() -> Iterator[torch.device]:
    """Acquire a free GPU for the block and yield it; without a GPU yield the CPU. Wait while all GPUs are taken.

    Jobs spread: no GPU gets a second job while another has none. InputError for a wrong REREAD_RUNS_A_GPU.
    """
    slots = runs_per_gpu()
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    waiting = False
    while True:
        for slot, index in itertools.product(range(slots), range(torch.cuda.device_count())):
            uuid = torch.cuda.get_device_properties(index).uuid
            name = f"gpu-{uuid}-{slot}.lock" if slot else f"gpu-{uuid}.lock"
            with file_lock(LOCKS / name, blocking=False) as acquired:
                if acquired:
                    torch.cuda.set_device(index)
                    yield torch.device("cuda", index)
                    return
        if not waiting:
            print("waiting: other jobs use every visible GPU", file=sys.stderr)
            waiting = True
        time.sleep(POLL_SECONDS)


def runs_per_gpu() -> int:
    """Return how many jobs share a GPU: REREAD_RUNS_A_GPU, or 1."""
    given = os.environ.get("REREAD_RUNS_A_GPU", "1")
    if not given.isdecimal() or int(given) == 0:
        raise InputError(f"REREAD_RUNS_A_GPU={given} is not a number of runs: give a whole number from 1 up")
    return int(given)
