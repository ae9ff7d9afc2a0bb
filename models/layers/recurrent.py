"""A bidirectional GRU over padded sequences whose states at real steps do not depend on the padding.

The GRU is the one of Cho et al. 2014 in PyTorch's form (``torch.nn.GRU``). The backward direction reads each row
reversed by its own length, so that padding stays at the end in both directions. A packed sequence would do the
same, but torch.export refuses it. On a GPU a kernel does both directions at once and reads no padding.

Shape legend: N rows, T steps, M real steps, I inputs, H units per direction.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from cuda_ext.gru import MOST_UNITS, gru, gru_ragged
from models.layers.sequences import real_steps, reverse_by_length


def states_of(network: nn.Module, x: Tensor) -> Tensor:
    """Return the states [N, T, H] of a network that returns only them, or a tuple as ``nn.GRU`` does."""
    output = network(x)
    return output[0] if isinstance(output, tuple) else output


class BidirectionalGRU(nn.Module):
    """States of a forward and a backward GRU side by side."""

    uses_kernels = True
    rectified = False  # whether relu makes the candidate, in place of tanh

    def __init__(self, inputs: int, units: int, direction: Callable[[], nn.Module] | None = None) -> None:
        """direction: makes one direction's network, from x [N, T, I] to its states or a tuple with them; nn.GRU's."""
        super().__init__()
        direction = direction or partial(nn.GRU, inputs, units, batch_first=True)
        self.units = units
        self.forwards = direction()
        self.backwards = direction()

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        """x float [N, T, I], lengths int [N] -> states float [N, T, 2H], zero at padding."""
        if x.is_cuda and self.units <= MOST_UNITS:
            return gru(x, lengths, self.flat_parameters(), bidirectional=True, rectified=self.rectified)[0]
        forwards = states_of(self.forwards, x)
        backwards = reverse_by_length(states_of(self.backwards, reverse_by_length(x, lengths)), lengths)
        states = torch.cat([forwards, backwards], dim=-1)
        return states * real_steps(lengths, x.shape[1]).unsqueeze(-1)

    def read_ragged(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
        """x float [M, I], sequence n in rows offsets[n] to offsets[n + 1] (int [N + 1]) -> states float [M, 2H] and
        the last state of each direction, float [2, N, H]; rows that no sequence has are not read."""
        return gru_ragged(x, offsets, self.flat_parameters(), bidirectional=True, rectified=self.rectified)

    def flat_parameters(self) -> list[Tensor]:
        """Return the parameters in the order of a bidirectional ``nn.GRU``."""
        return [*self.forwards.parameters(), *self.backwards.parameters()]
