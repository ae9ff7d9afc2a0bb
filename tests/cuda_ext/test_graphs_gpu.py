"""A function that replays from CUDA graphs gives the bits of one that is called, and the host waits for nothing."""

import gc
import threading
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from cuda_ext.graphs import Graphs, GraphWarning

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]

GPU = torch.device("cuda", 0)


def inputs(rows, seed=0):
    return torch.randn(rows, 64, generator=torch.Generator("cuda").manual_seed(seed), device=GPU)


class Training:
    """Steps of a small network with dropout, by ``Graphs`` or called."""

    def __init__(self, graphed):
        torch.manual_seed(0)
        self.network = nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Dropout(0.5), nn.Linear(128, 8)).to(
            GPU
        )
        self.optimiser = torch.optim.AdamW(self.network.parameters(), lr=0.01, fused=True)
        self.compute = Graphs(self.gradients, "the step", GPU) if graphed else self.gradients

    def gradients(self, given):
        self.optimiser.zero_grad()
        loss = functional.cross_entropy(self.network(given), given[:, :8].argmax(dim=1))
        loss.backward()
        return loss.detach(), [parameter.grad for parameter in self.network.parameters()]

    def step(self, given):
        loss, gradients = self.compute(given)
        for parameter, gradient in zip(self.network.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.optimiser.step()
        return loss.clone()


def test_steps_of_several_shapes_and_random_numbers_have_the_bits_of_called_ones():
    ends = []
    for graphed in (False, True):
        training = Training(graphed)
        torch.manual_seed(1)
        # The host runs far ahead of the GPU, so that captures happen while earlier replays wait to run.
        losses = [training.step(inputs((16, 33, 64)[number % 3], number)) for number in range(60)]
        ends.append([torch.stack(losses), *training.network.state_dict().values(), torch.rand(3, device=GPU)])
    assert training.compute._captured.keys() == training.compute._called
    for tensor, other in zip(*ends, strict=True):
        assert torch.equal(tensor, other)


def test_garbage_that_holds_a_graph_does_not_end_a_capture():
    def collecting(x):
        gc.set_threshold(1)
        return x + len([[] for _ in range(100)])

    graphs, x = Graphs(collecting, "the sum", GPU), inputs(16)
    thresholds = gc.get_threshold()
    try:
        graphs(x)
        # Nothing is collected until the function sets its threshold, within the capture.
        gc.set_threshold(0)
        other = Training(graphed=True)
        for seed in range(3):
            other.step(inputs(16, seed))
        other.itself, gone = other, weakref.ref(other)
        del other
        assert torch.equal(graphs(x), x + 100)
    finally:
        gc.set_threshold(*thresholds)
    assert not graphs.failed
    gc.collect()
    assert gone() is None


def test_a_shape_is_called_then_captured_without_waiting_for_the_gpu():
    training = Training(True)
    training.step(inputs(16))
    given = inputs(16)
    torch.cuda.synchronize()
    # Three seconds: libraries may be loaded meanwhile.
    torch.cuda._sleep(6_000_000_000)
    event = torch.cuda.Event()
    event.record()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            training.step(given)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(training.compute._captured) == 1
    assert not event.query(), "the GPU was still busy with what came before"


def test_another_thread_waits_for_an_event_while_a_graph_is_captured():
    """As the writer of a checkpoint does."""
    stop, failed = threading.Event(), []

    def wait_for_events():
        try:
            while not stop.is_set():
                event.synchronize()
        except RuntimeError as error:
            failed.append(error)

    training = Training(True)
    event = torch.cuda.Event(blocking=True)
    event.record()
    thread = threading.Thread(target=wait_for_events)
    thread.start()
    try:
        for rows in range(16, 48):
            for _ in range(3):
                training.step(inputs(rows))
    finally:
        stop.set()
        thread.join()
    assert not failed and not training.compute.failed and len(training.compute._captured) == 32


def test_a_function_that_asks_for_a_value_is_called_with_a_warning():
    def choose(given):
        return given * 2 if given.sum().item() > 0 else given

    doubled = Graphs(choose, "the choice", GPU)
    given = inputs(4).abs()
    assert torch.equal(doubled(given), given * 2)
    with pytest.warns(GraphWarning, match="no CUDA graph holds the choice"):
        assert torch.equal(doubled(given), given * 2)
    assert torch.equal(doubled(-given), -given)
