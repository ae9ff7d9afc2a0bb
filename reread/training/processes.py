"""The processes that train one network together, as torchrun starts them:

    torchrun --nproc-per-node 2 -m reread.training JOB.json

Each computes its share of every batch; gradients, losses and right answers are summed over all. Only rank 0 locks,
writes, logs and prints. Without torchrun's variables there is one process, and nothing is exchanged.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self, TypeVar

from reread.storage.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor, nn

Result = TypeVar("Result")
# How long the others wait for rank 0, which may wait for a lock that another run holds.
RENDEZVOUS_TIMEOUT = timedelta(days=7)


@dataclass(frozen=True)
class Processes:
    """rank and world_size over all nodes; local_rank and local_world_size on this node, whose number is ``node``."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node: int = 0

    @classmethod
    def of_environment(cls) -> Self:
        """Read torchrun's variables; one process where they are missing."""
        names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        if any(name not in os.environ for name in names):
            return cls()
        return cls(*(int(os.environ[name]) for name in names))

    @property
    def main(self) -> bool:
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        return self.world_size > 1

    def run_on_rank_zero(self, work: Callable[[], Result]) -> Result:
        """Do ``work`` in rank 0 and return its result in all; an InputError of it is raised in all."""
        if not self.is_distributed:
            return work()
        outcome: tuple[Any, str | None] = (None, None)
        if self.main:
            try:
                outcome = (work(), None)
            except InputError as error:
                outcome = (None, str(error))
        result, refused = self.gather(outcome)[0]
        if refused is not None:
            raise InputError(refused)
        return result

    def gather(self, value: Any) -> list[Any]:
        """Return the value of every rank, in their order."""
        if not self.is_distributed:
            return [value]
        import torch.distributed

        values = [None] * self.world_size
        torch.distributed.all_gather_object(values, value, group=_of_objects())
        return values

    def weighted_all_reduce(self, tensors: "list[Tensor]", share: float) -> None:
        """Replace each tensor, on its device, by the sum over all ranks of ``share`` times theirs."""
        import torch

        flat = torch.cat([tensor.detach().flatten().float() for tensor in tensors]).mul_(share)
        torch.distributed.all_reduce(flat)
        pieces = flat.split([tensor.numel() for tensor in tensors])
        with torch.no_grad():
            for tensor, piece in zip(tensors, pieces, strict=True):
                tensor.copy_(piece.view_as(tensor))


SINGLE_PROCESS = Processes()


def _of_objects() -> Any:
    """Return the gloo group, which exchanges objects through the CPU's memory; made once."""
    import torch.distributed

    global _objects
    if _objects is None:
        _objects = torch.distributed.new_group(backend="gloo", timeout=RENDEZVOUS_TIMEOUT)
    return _objects


_objects: Any = None


def with_shared_statistics(network: "nn.Module", processes: Processes) -> "nn.Module":
    """Return ``network`` with batch norms that take the statistics of a whole batch over all processes.

    They are PyTorch's own (``nn.SyncBatchNorm``), which need GPUs: InputError on a CPU. Parameters, buffers and their
    names stay. Where processes have unequal shares of a batch, the part of a gradient that passes through the
    statistics is off by their relative difference: the losses behind it are each process's own mean.
    """
    import torch
    from torch.nn.modules.batchnorm import _BatchNorm

    if not processes.is_distributed or not any(isinstance(module, _BatchNorm) for module in network.modules()):
        return network
    if not torch.cuda.is_available():
        raise InputError(
            f"{type(network).__name__} has batch norm, whose statistics are those of a whole batch, and on a CPU "
            f"{processes.world_size} processes would each take their own: train it with one process, or on GPUs"
        )
    return torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
