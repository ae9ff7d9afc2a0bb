"""What a checkpoint keeps of an optimiser: tensors, numbers and the groups' values."""

import pytest
import torch
from torch import nn

from training.average import Average
from training.checkpoint import Checkpoint
from training.optimisers import REGISTRY, make_optimiser
from training.settings import Settings
from training.state import State
from training.validation import Validation


class Counting(torch.optim.Optimizer):
    """Counts its steps in plain numbers, by parameter and by group."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["steps"] = state.get("steps", 0) + 1
                parameter.sub_(parameter.grad, alpha=group["lr"] / state["steps"] / group["steps"])


def steps(network, optimiser, count):
    for _ in range(count):
        for parameter in network.parameters():
            parameter.grad = torch.sin(parameter.detach()) + 1
        optimiser.step()


def made(make, directory):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimiser = make(network)
    return (
        network,
        optimiser,
        Checkpoint(directory, network, Average(network, 0), optimiser, torch.amp.GradScaler("cpu")),
    )


def by_name(name):
    return lambda network: make_optimiser(network, Settings(optimizer={"name": name}))


MAKERS = {name: by_name(name) for name in REGISTRY.available()}
MAKERS |= {"counting": lambda network: Counting(network.parameters(), {"lr": 0.1})}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_resumed_optimiser_goes_on_as_one_that_was_not_stopped(make, tmp_path):
    whole, optimiser, _ = made(make, tmp_path)
    steps(whole, optimiser, 5)
    first, optimiser, checkpoint = made(make, tmp_path)
    steps(first, optimiser, 2)
    state = State()
    state.record({}, Validation(1.0, 0.5, 0.5))
    checkpoint.save(state)
    second, optimiser, checkpoint = made(make, tmp_path)
    assert checkpoint.resume().epoch == 1
    steps(second, optimiser, 3)
    assert torch.equal(second.weight, whole.weight) and torch.equal(second.bias, whole.bias)
    assert not torch.equal(second.weight, first.weight)
