"""Copies to a GPU and back, one after another and overlapped by streams, as cases for a claim on their time:

    python -m cuda_ext.pairs benchmarks.overlap "256 MiB, 4 rounds, float32" "one stream" --output overlap.jsonl

The ways are a tutorial's (M. Harris, "How to Overlap Data Transfers in CUDA C/C++", NVIDIA Technical Blog, 2012):

this             chunk by chunk, each in a stream of its own: copied there, computed, copied back
breadth first    the same streams: all chunks are copied there, then all computed, then all copied back
one stream       the whole at once

Streams overlap where the host's memory is pinned; ``pageable`` memory is the counterexample. What is computed is the
tutorial's x + sqrt(sin(x)^2 + cos(x)^2), so many rounds of it: there is most to gain where it takes as long as a copy.
"""

import functools
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from cuda_ext.bench import refuse_without_gpu
from cuda_ext.case import Case, Run

CHUNKS = 4
NUMBERS = 2**26
ROUNDS = (1, 4, 16)


def bench_cases() -> Iterator[Case]:
    for rounds in ROUNDS:
        yield _case(rounds, pinned=True)
    yield _case(ROUNDS[1], pinned=False)


def _case(rounds: int, pinned: bool) -> Case:
    def inputs() -> tuple[Tensor, Tensor]:
        refuse_without_gpu()
        x, result = (torch.empty(NUMBERS, pin_memory=pinned) for _ in range(2))
        return x.uniform_(), result

    name = f"{NUMBERS * 4 // 2**20} MiB, {rounds} round{'s' if rounds > 1 else ''}" + ("" if pinned else ", pageable")
    peers: dict[str, Run] = {
        "one stream": partial(depth_first, rounds=rounds, chunks=1),
        "breadth first": partial(breadth_first, rounds=rounds),
    }
    exact = partial(_exact, rounds=rounds)
    # The bytes are those that the bus moves.
    moved = 2 * 4 * NUMBERS
    return Case("overlap", name, torch.float32, inputs, partial(depth_first, rounds=rounds), peers, exact, moved)


def compute(x: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        x = x + (x.sin().square_() + x.cos().square_()).sqrt_()
    return x


def _exact(x: Tensor, result: Tensor, rounds: int) -> Tensor:
    return compute(x, rounds)


@functools.cache
def streams(count: int) -> list[torch.cuda.Stream]:
    return [torch.cuda.Stream() for _ in range(count)]


def depth_first(x: Tensor, result: Tensor, rounds: int, chunks: int = CHUNKS) -> Tensor:
    """Write what is computed of ``x`` to ``result``, both on the CPU, and return it when all is done."""
    for stream, part, place in zip(streams(chunks), x.chunk(chunks), result.chunk(chunks), strict=True):
        with torch.cuda.stream(stream):
            place.copy_(compute(part.to("cuda", non_blocking=True), rounds), non_blocking=True)
    torch.cuda.synchronize()
    return result


def breadth_first(x: Tensor, result: Tensor, rounds: int, chunks: int = CHUNKS) -> Tensor:
    """As ``depth_first``, one kind of step after another."""
    there, computed = [], []
    for stream, part in zip(streams(chunks), x.chunk(chunks), strict=True):
        with torch.cuda.stream(stream):
            there.append(part.to("cuda", non_blocking=True))
    for stream, part in zip(streams(chunks), there, strict=True):
        with torch.cuda.stream(stream):
            computed.append(compute(part, rounds))
    for stream, part, place in zip(streams(chunks), computed, result.chunk(chunks), strict=True):
        with torch.cuda.stream(stream):
            place.copy_(part, non_blocking=True)
    torch.cuda.synchronize()
    return result
