"""The error that the benchmark prints and the tests bound, its peers, and the order in which it times."""

import importlib.util
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from cuda_ext import bench, build
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


def as_documented(x, hidden, *parameters_and_starts, compute_dtype, input_precision):
    """As the docstring of TorchRL's gru_triton has it."""
    *parameters, is_init = parameters_and_starts
    state, states = hidden[:, 0], []
    for t, start in enumerate(is_init.unbind(1)):
        state = torch.gru_cell(x[:, t], torch.where(start[:, None], hidden[:, t], state), *parameters)
        states.append(state)
    return torch.stack(states, 1), state


def scanned(x, hidden, *parameters_and_starts, compute_dtype, input_precision):
    """TorchRL's other form of it, which needs no GPU."""
    from torchrl.modules.tensordict_module.rnn import _GRUScanFunction

    *parameters, is_init = parameters_and_starts
    x, resets, is_init = (tensor.transpose(0, 1).contiguous() for tensor in (x, hidden, is_init))
    states = _GRUScanFunction.apply(x, resets[0], resets, is_init, *parameters).transpose(0, 1)
    return states, states[:, -1]


NO_TORCHRL = pytest.mark.skipif(importlib.util.find_spec("torchrl") is None, reason="torchrl is not installed")


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")
@pytest.mark.parametrize("form", [as_documented, pytest.param(scanned, marks=[pytest.mark.unlocked, NO_TORCHRL])])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_rows_of_sequences_end_to_end_give_torchrl_the_same_as_nn_gru_gives(bidirectional, form):
    torch.manual_seed(0)
    sequences, steps = 96, 6
    module = nn.GRU(3, 5, batch_first=True, bidirectional=bidirectional, dtype=torch.float64)
    x = torch.randn(sequences, steps, 3, dtype=torch.float64, requires_grad=True)
    lengths = torch.randint(1, steps + 1, (sequences,))
    places = recurrences._end_to_end(lengths.tolist(), steps)
    real = places >= 0
    assert len(places) % 16 == 0 and len(places) < sequences and real.sum() == lengths.sum()

    (exact,) = recurrences._packed(module, recurrences._Prepared())(x, lengths)
    run = recurrences._torchrl(lambda: form, module, torch.float64)
    (states,) = run(x, lengths)
    torch.testing.assert_close(states[real], exact.flatten(0, 1)[places[real]])

    above = torch.randn(sequences, *states.shape[1:], dtype=torch.float64)
    above[: len(places)][~real] = 0
    expected_above = torch.zeros_like(exact)
    expected_above.flatten(0, 1)[places[real]] = above[: len(places)][real]
    of_rows, *gradients = recurrences._with_gradients(run, module)(x, lengths, above)
    of_x, *expected = torch.autograd.grad(exact, [x, *module.parameters()], expected_above)
    torch.testing.assert_close(of_rows[real], of_x.flatten(0, 1)[places[real]])
    torch.testing.assert_close(gradients, expected)


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


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (("bench", "--json", "none/figures.json"), "none/figures.json lies in no folder that exists: make it"),
        (("bench",), "the kernels run on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`"),
        (("exercise",), "the kernels run on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`"),
    ],
)
def test_what_cannot_run_is_one_line(command, said):
    done = subprocess.run(
        [sys.executable, "-m", f"cuda_ext.{command[0]}", *command[1:]], cwd=build.SOURCES.parent,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"error: {said}\n")


def test_figures_are_written_by_rename(tmp_path):
    file, before = tmp_path / "figures.json", tmp_path / "before.json"
    bench.write(file, {"results": []})
    # Another name of the file as it was: it keeps that content.
    before.hardlink_to(file)
    bench.write(file, {"results": [1]})
    assert json.loads(file.read_text()) == {"results": [1]} and json.loads(before.read_text()) == {"results": []}
    assert sorted(tmp_path.iterdir()) == [before, file]


def test_without_nvidia_smi_the_settings_are_none(monkeypatch):
    monkeypatch.setattr(bench.torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(bench.torch.cuda, "get_device_properties", lambda device: type("GPU", (), {"uuid": "0"}))
    monkeypatch.setenv("PATH", "")
    assert bench.gpu_values(("power.draw", "clocks.sm")) == {"power.draw": None, "clocks.sm": None}
