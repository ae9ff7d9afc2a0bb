"""The moving average of weights: by hand, warmed up, and beside a network that goes on training."""

import pytest
import torch
from torch import nn

from training.average import Average


def test_averages_are_those_of_the_formula_and_the_network_is_left_alone():
    network = nn.Linear(1, 1)
    average = Average(network, 0.5)
    expected = network.weight.item()
    for step, value in enumerate((3.0, -1.0, 4.0, 8.0, 2.0, 6.0, 5.0, 9.0, 7.0, 0.0)):
        with torch.no_grad():
            network.weight.fill_(value)
        average.update(step)
        # Warmed up: 1/10, 2/11, 3/12, ... and from step 8 on, 9/18, no more than 0.5.
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * value
        assert average.network.weight.item() == pytest.approx(expected, rel=1e-6)
        assert network.weight.item() == value
    assert not any(parameter.requires_grad for parameter in average.network.parameters())
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_buffers_are_copied_and_not_averaged():
    network = nn.BatchNorm1d(2)
    average = Average(network, 0.9)
    network(torch.randn(5, 2))
    average.update(0)
    average.take_buffers()
    assert torch.equal(average.network.running_mean, network.running_mean) and network.running_mean.any()
    assert average.network.num_batches_tracked.item() == 1
    network(torch.randn(5, 2))
    assert average.network.num_batches_tracked.item() == 1


def test_of_decay_0_the_network_itself_is_kept():
    network = nn.Linear(1, 1)
    average = Average(network, 0.0)
    before = network.weight.item()
    average.update(0)
    average.take_buffers()
    assert average.network is network and network.weight.item() == before and network.weight.requires_grad
