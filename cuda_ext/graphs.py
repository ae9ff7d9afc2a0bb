"""Functions of tensors on a GPU, replayed from CUDA graphs: one graph for each shape of their inputs.

A small network's step is hundreds of launches that take the CPU longer to issue than the GPU to run. The first call
with a shape runs the function, the second captures and replays it, and later ones replay it: a shape that comes once is
never captured. What is called and what replays give the same bits.

The host never waits for the GPU: torch.cuda.graph would synchronise and empty the cache at each capture. Function and
captures have a stream of their own, so that libraries have made their workspaces there before the first capture. Calls
are ordered by the streams: whatever the caller has issued comes first, and whatever it issues later comes after.
"""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cuda_ext.foreach_copy import foreach_copy


class GraphWarning(UserWarning):
    """A function cannot be captured in a CUDA graph: it is called instead."""


@dataclass(frozen=True)
class Captured:
    """A graph with the tensors that it reads from and writes to."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    result: Any


class Graphs:
    """Calls ``function`` of tensors on ``device``, by a CUDA graph where the shapes of its inputs are known.

    The function may change tensors in place and draw random numbers. Its result holds until the next call.
    """

    def __init__(self, function: Callable[..., Any], name: str, device: torch.device) -> None:
        """name: of the function, for the warning that no graph holds it."""
        self.function = function
        self.name = name
        self.device = device
        self.failed = False
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._called: set[tuple[Any, ...]] = set()
        self._captured: dict[tuple[Any, ...], Captured] = {}

    def __call__(self, *inputs: Tensor) -> Any:
        """Return what the function returns of ``inputs``; after a capture that failed, it is always called."""
        if self.failed:
            return self.function(*inputs)
        shapes = tuple((tensor.shape, tensor.dtype) for tensor in inputs)
        if shapes not in self._captured:
            if shapes not in self._called:
                self._called.add(shapes)
                with self._on_own_stream():
                    return self.function(*inputs)
            try:
                self._captured[shapes] = self._capture(inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self.failed = True
                _draw_outside_of_graphs()
                first = str(error).splitlines()[0]
                warnings.warn(f"no CUDA graph holds {self.name} ({first})", GraphWarning, stacklevel=2)
                return self.function(*inputs)
        captured = self._captured[shapes]
        foreach_copy(captured.inputs, inputs)
        captured.graph.replay()
        return captured.result

    def _capture(self, inputs: tuple[Tensor, ...]) -> Captured:
        """Capture the function without running it."""
        free, _ = torch.cuda.mem_get_info(self.device)
        # While a graph is captured, cached memory cannot be freed to make room.
        if free < torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device):
            torch.cuda.empty_cache()
        places = tuple(tensor.clone() for tensor in inputs)
        graph = torch.cuda.CUDAGraph()
        with self._on_own_stream(), _no_garbage_collection():
            # Other threads may use CUDA meanwhile: a checkpoint's writer waits for its copies, NCCL for its peers.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                result = self.function(*places)
            finally:
                graph.capture_end()
        return Captured(graph, places, result)

    @contextmanager
    def _on_own_stream(self) -> Iterator[None]:
        """Run the block on the own stream: after what the current one was given, and before what it will be."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            yield
        current.wait_stream(self._stream)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep Python's garbage during the block: destroying a CUDA graph that is part of it would end a capture."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _draw_outside_of_graphs() -> None:
    """Let the current GPU draw random numbers after a capture that failed: until it is given a state that no graph
    knows, its generator believes to be captured still, and refuses."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
