"""One of two processes that train the same network with DistributedDataParallel, each on its half of a batch."""

import os
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from cuda_ext.attention_pooling import attention_pooling, attention_pooling_ragged
from cuda_ext.batch_norm_activation import batch_norm_activation
from cuda_ext.conv2d import conv2d
from cuda_ext.gru.module import GRU
from cuda_ext.library import ReferenceWarning
from cuda_ext.swish import swish
from cuda_ext.vector_add import vector_add

PROCESSES = 2
BATCH, CHANNELS, SIDE, STEPS, UNITS = 8, 4, 8, 6, 5


class EveryOperation(nn.Module):
    """Every operation of cuda_ext that has something to learn, one after the other, and the rest between them."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(0.3 * torch.randn(3, 3))
        self.other_filter = nn.Parameter(0.3 * torch.randn(5, 5))
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.beta = nn.Parameter(torch.tensor(1.5))
        self.beta_of_channel = nn.Parameter(torch.ones(CHANNELS))
        self.gru = GRU(CHANNELS, UNITS, batch_first=True, bidirectional=True)
        self.ragged_gru = GRU(2 * UNITS, UNITS, batch_first=True)
        self.projections = nn.ModuleList([nn.Linear(2 * UNITS, 2 * UNITS), nn.Linear(UNITS, UNITS)])
        self.contexts = nn.ParameterList([torch.randn(2 * UNITS), torch.randn(UNITS)])

    def forward(self, images: Tensor, lengths: Tensor) -> Tensor:
        """images float [N, CHANNELS, SIDE, SIDE], lengths int [N] -> float [N]."""
        pictures = images.flatten(0, 1)
        x = vector_add(conv2d(pictures, self.filter), conv2d(pictures, self.other_filter)).view_as(images)
        norm = self.norm
        x = batch_norm_activation(
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var,
            training=self.training, activation="swish", beta=self.beta,
        )  # fmt: skip
        x = swish(x, self.beta_of_channel)
        sequences = x.flatten(2).transpose(1, 2)[:, :STEPS].contiguous()
        states, _ = self.gru(sequences, lengths=lengths)
        first, _ = attention_pooling(
            states, lengths, self.projections[0].weight, self.projections[0].bias, self.contexts[0]
        )
        offsets = torch.arange(0, len(images) * STEPS + 1, STEPS, device=images.device)
        rows, _ = self.ragged_gru(states.flatten(0, 1), offsets=offsets)
        second, _ = attention_pooling_ragged(
            rows, offsets, self.projections[1].weight, self.projections[1].bias, self.contexts[1]
        )
        return first.sum(1) + second.sum(1)


def made(device: torch.device) -> tuple[EveryOperation, Tensor, Tensor]:
    """The network and the whole batch, the same in every process."""
    torch.manual_seed(0)
    network = EveryOperation()
    images = torch.randn(BATCH, CHANNELS, SIDE, SIDE)
    lengths = torch.randint(1, STEPS + 1, (BATCH,))
    return network.to(device), images.to(device), lengths.to(device)


def gradients(network: nn.Module, images: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    network(images, lengths).square().mean().backward()
    return {name.removeprefix("module."): parameter.grad.cpu() for name, parameter in network.named_parameters()}


def train_a_step(rank: int, device_type: str, folder: str) -> None:
    """Save the gradients of this process after one backward pass, in ``folder``/RANK.pt."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
    warnings.simplefilter("ignore", ReferenceWarning)
    torch.set_num_threads(1)
    device = torch.device(device_type)
    store = torch.distributed.FileStore(str(Path(folder) / "store"), PROCESSES)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=PROCESSES)
    try:
        network, images, lengths = made(device)
        half = slice(rank * BATCH // PROCESSES, (rank + 1) * BATCH // PROCESSES)
        half_gradients = gradients(DistributedDataParallel(network), images[half], lengths[half])
        torch.save(half_gradients, Path(folder) / f"{rank}.pt")
    finally:
        torch.distributed.destroy_process_group()
