"""Work on a second stream of a GPU, beside what the current stream does: in a CUDA graph, a branch of its own."""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


class Branch:
    """Runs functions on a second stream of ``device``; on a CPU at once."""

    def __init__(self, device: torch.device) -> None:
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        if device.type == "cuda":
            first = torch.cuda.current_stream(device)
            self._streams = first, _second_stream(first.device_index, first.cuda_stream)
        # Until the join they keep what they read: memory that is freed is given away on the first stream.
        self._running: list[Callable[[], object]] = []
        # Gradients wait for the end of a step's backward pass alone: of any other one they are asked for, not added.
        self._in_backward = False
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def __call__(self, function: Callable[[], Result]) -> Result:
        """Return the function's result, which is there after the next ``join``. Whatever was issued comes before it."""
        if self._streams is None:
            return function()
        first, second = self._streams
        self._running.append(function)
        # Memory of a result is reused by later functions on the second stream alone, behind this wait.
        second.wait_stream(first)
        with torch.cuda.stream(second):
            return function()

    def join(self) -> None:
        """Let the current stream wait for all functions so far."""
        # A stream that a graph is captured on must not wait for one that has no part in it.
        if self._streams and self._running:
            first, second = self._streams
            first.wait_stream(second)
        self._running.clear()

    def begin_backward(self) -> None:
        """Join, and let the gradients of parameters wait for the end of the block from here on."""
        self.join()
        self._in_backward = True

    def await_prepared(self) -> None:
        """Let a backward pass wait for what its forward pass has prepared; that of a step begins with it."""
        if not self._in_backward:
            self.join()

    def gradients(self, parameters: Sequence[Tensor], results: Sequence[Tensor]) -> list[Tensor | None]:
        """Return the gradients of ``parameters``, which a function has returned, as a backward pass returns them.

        In the backward pass of a step it is None for each: they are added to ``.grad`` when the block ends. Autograd
        gets them after a join where it does more with them: of a tensor that is no leaf, or that has a hook.
        """
        hooks = ("_backward_hooks", "_post_accumulate_grad_hooks")
        added = all(tensor.is_leaf and not any(getattr(tensor, hook) for hook in hooks) for tensor in parameters)
        if self._in_backward and added and not torch.is_grad_enabled():
            self._waiting += [pair for pair in zip(parameters, results, strict=True) if pair[0].requires_grad]
            return [None] * len(results)
        self.join()
        return list(results)

    def close(self) -> None:
        """Join, and add the gradients that wait for it."""
        self.join()
        with torch.no_grad():
            for parameter, gradient in self._waiting:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        self._waiting.clear()
        self._in_backward = False


@contextmanager
def branch(device: torch.device) -> Iterator[Branch]:
    """Yield what runs functions beside the block: they need nothing of it, and it nothing of them before a ``join``."""
    beside = Branch(device)
    try:
        yield beside
    finally:
        beside.close()


@contextmanager
def branch_of_step(device: torch.device) -> Iterator[Branch]:
    """A branch that operations inside the block find: of a forward pass, ``begin_backward``, and its backward pass.

    Beside the forward pass they prepare the backward pass, and beside that they compute gradients of parameters, which
    are in ``.grad`` when the block ends.
    """
    with branch(device) as beside:
        token = _of_step.set(beside)
        try:
            yield beside
        finally:
            _of_step.reset(token)


def current_branch() -> Branch | None:
    """The branch of the step around a forward pass; None outside of a step, and while torch.compile traces."""
    return None if torch.compiler.is_compiling() else _of_step.get()


# Of this thread: a backward pass, which has others, keeps what its forward pass has found.
_of_step: ContextVar[Branch | None] = ContextVar("branch_of_step", default=None)


@functools.cache
def _second_stream(device: int, _first: int) -> torch.cuda.Stream:
    """The stream beside another: threads that capture graphs, each on its own stream, must not meet on one."""
    return torch.cuda.Stream(device)
