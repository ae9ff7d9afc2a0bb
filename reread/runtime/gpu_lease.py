"""One job per GPU, by a file lock that the kernel releases when the process ends in any way.

The lock is /tmp/reread-gpus-USER_ID/gpu-UUID.lock: all checkouts of a user share the GPUs of the machine. It names the
UUID because a GPU's number changes with CUDA_VISIBLE_DEVICES. The folder is in /tmp and not in TMPDIR or
XDG_RUNTIME_DIR, which differ between a shell, a service and a batch job.
A small network leaves a large GPU idle: with ``slots`` N, N processes share each GPU by N locks. Sharing
changes the speed of a process but not its results.
"""

import contextlib
import itertools
import os
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from reread.storage.errors import InputError
from reread.storage.locks import file_lock

LOCKS = Path(f"/tmp/reread-gpus-{os.getuid()}")
POLL_SECONDS = 0.5


@contextlib.contextmanager
def acquire_gpu(slots: int = 1) -> Iterator[torch.device]:
    """Acquire a free GPU for the block and yield it; without a GPU yield the CPU. Wait while all GPUs are taken."""
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    with acquire_gpus(1, slots) as (index,):
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


@contextlib.contextmanager
def acquire_gpus(count: int, slots: int = 1) -> Iterator[list[int]]:
    """Acquire ``count`` GPUs for the block, all or none, and yield their numbers. Wait while other jobs leave fewer.

    Jobs are spread: no GPU gets a second job while another GPU has none.
    """
    waiting = False
    make_folder(LOCKS)
    while True:
        with contextlib.ExitStack() as held:
            acquired: list[int] = []
            for slot, index in itertools.product(range(slots), range(torch.cuda.device_count())):
                if index not in acquired and held.enter_context(file_lock(_lock(index, slot), blocking=False)):
                    acquired.append(index)
                if len(acquired) == count:
                    yield acquired
                    return
        if not waiting:
            print("waiting: other jobs have the visible GPUs", file=sys.stderr)
            waiting = True
        time.sleep(POLL_SECONDS)


def make_folder(path: Path) -> None:
    """Make the folder of the locks, which its user alone may use. InputError where another has made one like it."""
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise InputError(f"{path}, for the locks of the GPUs, is not only this user's: remove it and run again")


def _lock(index: int, slot: int) -> Path:
    uuid = torch.cuda.get_device_properties(index).uuid
    return LOCKS / (f"gpu-{uuid}-{slot}.lock" if slot else f"gpu-{uuid}.lock")
