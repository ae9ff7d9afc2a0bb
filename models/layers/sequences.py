"""Sequences of many lengths: padded to rows, or ragged, one behind the other with offsets.

Nothing here waits for a GPU or has a shape that depends on values, so that a CUDA graph can hold it.

Shape legend: N sequences, T steps, M steps of all sequences, D width of a step.
"""

import torch
from torch import Tensor


def offsets_of(lengths: Tensor) -> Tensor:
    """Return where sequences of ``lengths``, int [N], begin and end one behind the other, int [N + 1]."""
    offsets = lengths.new_zeros(len(lengths) + 1)
    # In their own dtype, and in place: a cast and a copy would each be a launch on a GPU.
    torch.cumsum(lengths, 0, dtype=lengths.dtype, out=offsets[1:])
    return offsets


def real_steps(lengths: Tensor, steps: int) -> Tensor:
    """Return the mask bool [N, T] that is true at the first ``lengths[n]`` of ``steps`` steps."""
    return torch.arange(steps, device=lengths.device) < lengths.unsqueeze(-1)


def reverse_by_length(x: Tensor, lengths: Tensor) -> Tensor:
    """Reverse the first ``lengths[n]`` steps of each row of x [N, T, ...]; padding stays where it is."""
    step = torch.arange(x.shape[1], device=x.device)
    length = lengths.unsqueeze(-1).long()
    source = torch.where(step < length, length - 1 - step, step)
    row = torch.arange(x.shape[0], device=x.device).unsqueeze(-1)
    # Whole steps by their number: the gradient of a gather sorts every number of x on a GPU.
    return x.flatten(0, 1).index_select(0, (row * x.shape[1] + source).flatten()).view_as(x)


def sums_of_sequences(x: Tensor, offsets: Tensor) -> Tensor:
    """x float [M, D], sequence n in rows offsets[n] to offsets[n + 1] -> sums [N, D], at least in float32.

    Forward and backward add in order, without atomics, and wait for nothing: unsafe, because checking the offsets would
    wait for the GPU.
    """
    return torch.segment_reduce(x.to(at_least_float32(x)), "sum", offsets=offsets, unsafe=True)


def segment_ids(offsets: Tensor, rows: int) -> Tensor:
    """Return the sequence of each of ``rows`` rows, int64 [rows]; rows after the last sequence count to it."""
    row = torch.arange(rows, dtype=offsets.dtype, device=offsets.device)
    return (torch.searchsorted(offsets, row, right=True) - 1).clamp(max=len(offsets) - 2)


def at_least_float32(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
