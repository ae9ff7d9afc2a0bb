"""How the processes that train one network find each other, and end with torchrun, which starts them."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from reread.training.processes import RENDEZVOUS_TIMEOUT, Processes

# Of Linux: linux/prctl.h.
PR_SET_PDEATHSIG = 1


@contextmanager
def joined(processes: Processes) -> Iterator[None]:
    """Join the processes for the block. After an error nothing is closed: torchrun ends the others.

    From then on the kernel kills this process when torchrun has ended: nothing else would end one that waits for
    another inside torch.
    """
    if not processes.is_distributed:
        yield
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    import torch.distributed

    gpu = torch.cuda.is_available()
    store, rank, world_size = next(torch.distributed.rendezvous("env://", timeout=RENDEZVOUS_TIMEOUT))
    # torchrun keeps its store when it starts the processes again, with the addresses of those that died: a process
    # that read them would fail, or wait for ever (https://github.com/pytorch/pytorch/issues/167288).
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    torch.distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=torch.distributed.PrefixStore(f"attempt {attempt}", store),
        rank=rank,
        world_size=world_size,
        timeout=RENDEZVOUS_TIMEOUT,
    )
    yield
    torch.distributed.destroy_process_group()
