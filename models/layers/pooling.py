"""Pooling without trained weights: the mean or the maximum of a sequence's steps in place of attention.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, section 3.4 and table 2:
HN-AVE and HN-MAX pool the states of both levels so, HN-ATT by attention.

Each has the interface of ``models.layers.attention.Attention``; ``pooling`` gives any of the three by its name.

Shape legend: N sequences, T steps, M steps of all sequences, D width of the states.
"""

from typing import Literal

import torch
from torch import Tensor, nn

from models.layers.attention import Attention
from models.layers.sequences import at_least_float32, real_steps, segment_ids, sums_of_sequences

Name = Literal["attention", "mean", "max"]


def pooling(name: Name, width: int) -> "Attention | Mean | Max":
    """Build the named pooling of states of ``width`` numbers."""
    return Attention(width) if name == "attention" else {"mean": Mean, "max": Max}[name]()  # type: ignore[return-value]


class Mean(nn.Module):
    """The mean of a sequence's steps; each step weighs 1 / length."""

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """states float [N, T, D], lengths int [N] -> (mean float [N, D], weights float [N, T]).

        The weights are 0 at padding and sum to 1 over the real steps; a row of length 0 gives zeros.
        """
        states = states.to(at_least_float32(states))
        real = real_steps(lengths, states.shape[1])
        length = lengths.clamp(min=1).unsqueeze(-1)
        sums = states.masked_fill(~real.unsqueeze(-1), 0).sum(dim=1)
        return sums / length, real.to(states.dtype) / length

    def read_ragged(self, states: Tensor, offsets: Tensor) -> Tensor:
        """states float [M, D], sequence n in rows offsets[n] to offsets[n + 1] (int [N + 1]) -> means float [N, D]."""
        return sums_of_sequences(states, offsets) / offsets.diff().clamp(min=1).unsqueeze(-1)


class Max(nn.Module):
    """The largest value of each unit over a sequence's steps; a step weighs the share of the units that it is the
    largest of. Where several steps have a unit's largest value they share it, and its gradient, evenly."""

    def forward(self, states: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """states float [N, T, D], lengths int [N] -> (maximum float [N, D], weights float [N, T]).

        The weights are 0 at padding and sum to 1 over the real steps; a row of length 0 gives zeros.
        """
        states = states.to(at_least_float32(states))
        real = real_steps(lengths, states.shape[1]).unsqueeze(-1)
        # The lowest finite number instead of -inf: a row with no real step has no other.
        largest = states.masked_fill(~real, torch.finfo(states.dtype).min).amax(dim=1)
        here = ((states == largest.unsqueeze(1)) & real).to(states.dtype)
        weights = (here / here.sum(dim=1, keepdim=True).clamp(min=1)).mean(dim=-1)
        return largest.masked_fill((lengths == 0).unsqueeze(-1), 0), weights

    def read_ragged(self, states: Tensor, offsets: Tensor) -> Tensor:
        """states float [M, D], sequence n in rows offsets[n] to offsets[n + 1] (int [N + 1]) -> maxima float [N, D]."""
        states = states.to(at_least_float32(states))
        owner = segment_ids(offsets, len(states))
        real = torch.arange(len(states), device=states.device) < offsets[-1]
        # The gradient is that of a weighted sum: segment_reduce's own of a maximum gives each of several equal steps
        # all of it where it is negative (torch 2.13).
        largest = torch.segment_reduce(states.detach(), "max", offsets=offsets, unsafe=True)
        here = ((states == largest[owner]) & real.unsqueeze(-1)).to(states.dtype)
        shares = here / sums_of_sequences(here, offsets).clamp(min=1)[owner]
        return sums_of_sequences(shares * states, offsets)
