"""The error that the benchmark prints and the tests bound, its peers, and the order in which it times."""

import math

import pytest
import torch
from torch import nn

from cuda_ext import bench
from cuda_ext.bench import Run, relative_error
from cuda_ext.conv2d import cases as convolutions
from cuda_ext.conv2d import reference
from cuda_ext.gru import cases as recurrences


def test_the_error_is_that_of_the_worst_result_and_nan_never_passes():
    exact = torch.tensor([3.0, 4.0])
    assert relative_error(exact, exact) == 0
    assert math.isclose(relative_error((exact, exact + torch.tensor([0.0, 0.5])), (exact, exact)), 0.1)
    assert relative_error((exact, exact * torch.nan), (exact, exact)) == math.inf
    assert relative_error((exact * torch.nan, exact), (exact, exact)) == math.inf


@pytest.mark.parametrize(("shape", "size"), [((2, 9, 14), 3), ((1, 17, 17), 15), ((1, 40, 33), 31)])
@pytest.mark.parametrize("kept", [True, False])
def test_the_fourier_transform_is_the_convolution(shape, size, kept):
    run = convolutions.by_fft(kept)
    images, weight = torch.randn(shape), torch.randn(size, size)
    for _ in range(2):
        assert relative_error(run(images, weight), reference(images.double(), weight.double(), "zeros")) < 1e-6
    other = torch.randn(size, size)
    assert relative_error(run(images, other), reference(images.double(), other.double(), "zeros")) < 1e-6


def test_a_transform_s_length_is_even_with_small_factors():
    assert [convolutions._fast_length(side) for side in (8192, 8193, 8207, 11, 22)] == [8192, 8232, 8232, 12, 24]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_the_loop_that_is_compiled_is_nn_gru(bidirectional):
    module = nn.GRU(3, 5, batch_first=True, bidirectional=bidirectional)
    x = torch.randn(4, 6, 3)
    torch.testing.assert_close(recurrences._loop(module)(x), module(x)[0])


class Event:
    """A CUDA event whose clock goes on by one a record."""

    now = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        Event.now += 1
        self.time = Event.now

    def elapsed_time(self, end):
        return float(end.time - self.time)


def test_the_kernel_and_its_peers_take_turns(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    ran = []
    runs = {
        name: Run(lambda name=name: ran.append(name), calls, calls > 1) for name, calls in (("own", 4), ("peer", 1))
    }
    timed = bench.time_in_turn(runs, samples=3)
    assert ran[-6:] == ["own", "peer"] * 3
    assert timed["own"] == {"median_ms": 0.25, "low_quartile_ms": 0.25, "high_quartile_ms": 0.25, "n": 3, "graph": True}
    assert timed["peer"]["median_ms"] == 1 and not timed["peer"]["graph"]


def test_without_nvidia_smi_the_settings_are_none(monkeypatch):
    monkeypatch.setattr(bench.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(bench.torch.cuda, "get_device_properties", lambda device: type("GPU", (), {"uuid": "0"}))
    monkeypatch.setenv("PATH", "")
    assert bench.gpu_values(("power.draw", "clocks.sm")) == {"power.draw": None, "clocks.sm": None}
