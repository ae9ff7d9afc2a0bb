"""A checkpoint of a network on a GPU is of the moment when it was asked for, though training goes on."""

import pytest
import torch
from torch import nn

from reread.storage.run_folder import CHECKPOINT, HISTORY, WEIGHTS
from reread.training.average import Average
from reread.training.checkpoint import Checkpoint, Writer, checkpoints
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.state import COLUMNS, State
from reread.training.validation import Validation

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]


@pytest.mark.parametrize("decay", [0.0, 0.9])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_what_a_gpu_saves_in_the_background_is_what_it_saves_at_once(tmp_path, optimizer, decay):
    ends = []
    for background in (False, True):
        folder = tmp_path / str(background)
        folder.mkdir()
        torch.manual_seed(0)
        # Large enough that copying takes time, and channels-last, of which the copy is contiguous.
        network = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(800, 20_000))
        network.cuda().to(memory_format=torch.channels_last)
        optimiser = make_optimiser(network, Settings(optimizer={"name": optimizer}))
        writer = Writer(background)
        average = Average(network, decay)
        images = torch.randn(4, 8, 12, 12, device="cuda")
        kept = Checkpoint(folder, network, average, optimiser, torch.amp.GradScaler("cuda", False), writer=writer)
        state = State()
        with writer.finishing():
            for epoch in range(3):
                for parameter in network.parameters():
                    parameter.grad = torch.sin(parameter.detach()) + 1
                optimiser.step()
                average.update(epoch)
                average.take_buffers([(images,)])
                state.record(dict.fromkeys(COLUMNS, 0.0), Validation(1.0, epoch, epoch))
                kept.save(state)
            with torch.no_grad():
                for tensor in network.state_dict().values():
                    tensor.zero_()
        newest = checkpoints(folder)[-1]
        ends.append([path.read_bytes() for path in (folder / HISTORY, newest / CHECKPOINT, newest / WEIGHTS)])
    assert ends[0] == ends[1]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "lars"])
def test_a_resumed_channels_last_network_trains_as_one_that_was_not_stopped(tmp_path, optimizer):
    def made():
        torch.manual_seed(0)
        network = nn.Conv2d(8, 8, 3).cuda().to(memory_format=torch.channels_last)
        optimiser = make_optimiser(network, Settings(optimizer={"name": optimizer}))
        average, scaler = Average(network, 0), torch.amp.GradScaler("cuda", False)
        return network, optimiser, Checkpoint(tmp_path, network, average, optimiser, scaler, writer=Writer())

    def train(network, optimiser, steps):
        for _ in range(steps):
            for parameter in network.parameters():
                parameter.grad = torch.sin(parameter.detach()) + 1
            optimiser.step()

    whole, optimiser, kept = made()
    train(whole, optimiser, 2)
    state = State()
    state.record(dict.fromkeys(COLUMNS, 0.0), Validation(1.0, 0.5, 0.5))
    kept.save(state)
    train(whole, optimiser, 3)
    resumed, optimiser, kept = made()
    kept.resume()
    train(resumed, optimiser, 3)
    assert torch.equal(resumed.weight, whole.weight) and torch.equal(resumed.bias, whole.bias)
