"""Work on a second stream of a GPU, beside what the current stream does: in a CUDA graph, a branch of its own."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import torch

Result = TypeVar("Result")


class Aside(Protocol):
    """Runs a function on the second stream and returns its result, which is there when the block ends."""

    def __call__(self, function: Callable[[], Result]) -> Result: ...


@contextmanager
def branch(device: torch.device) -> Iterator[Aside]:
    """Yield what runs functions beside the block: they need nothing of it, and it nothing of them.

    At the end of the block the current stream waits for them. On a CPU they run at once.
    """
    if device.type != "cuda":
        yield lambda function: function()
        return
    first = torch.cuda.current_stream(device)
    second = _second_stream(first.device_index, first.cuda_stream)
    used = False

    # Memory of a function's result is reused by later functions on the second stream alone, behind this wait.
    def aside(function: Callable[[], Any]) -> Any:
        nonlocal used
        used = True
        second.wait_stream(first)
        with torch.cuda.stream(second):
            return function()

    try:
        yield aside
    finally:
        # A stream that a graph is captured on must not wait for one that has no part in it.
        if used:
            first.wait_stream(second)


@contextmanager
def branch_of_forward(device: torch.device) -> Iterator[None]:
    """Let operations in the block prepare their backward pass on a second stream; it begins after the block."""
    with branch(device) as aside:
        token = _of_forward.set(aside)
        try:
            yield
        finally:
            _of_forward.reset(token)


def aside_of_forward() -> Aside | None:
    """What runs functions beside the forward pass; None outside of such a block."""
    return _of_forward.get()


# Of this thread.
_of_forward: ContextVar[Aside | None] = ContextVar("aside_of_forward", default=None)


@functools.cache
def _second_stream(device: int, _first: int) -> torch.cuda.Stream:
    """The stream beside another: threads that capture graphs, each on its own stream, must not meet on one."""
    return torch.cuda.Stream(device)
