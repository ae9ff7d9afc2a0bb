"""The moving average of weights: by hand, warmed up, and beside a network that goes on training."""

import pytest
import torch
from torch import nn

from reread.training.average import BATCHES, Average


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


def norms_by_hand(network, inputs):
    """Run the network's norms on each batch, and return their running statistics as the means over batches."""
    moments = []
    with torch.no_grad():
        for batch in inputs:
            x = network[0](batch)
            moments.append((x.mean(dim=0), x.var(dim=0)))
    return [torch.stack(values).mean(dim=0) for values in zip(*moments, strict=True)]


def test_statistics_of_batch_norm_are_those_of_the_averaged_weights():
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=0.3), nn.Dropout(0.5), nn.Linear(3, 2))
    average = Average(network, 0.9)
    inputs = [torch.randn(16, 4, generator=generator) for _ in range(5)]
    for step, batch in enumerate(inputs):
        network.train()(batch)
        with torch.no_grad():
            network[0].weight.add_(torch.randn(3, 4, generator=generator))
        average.update(step)
    state = torch.get_rng_state()
    average.take_buffers([(batch,) for batch in inputs])
    assert torch.equal(torch.get_rng_state(), state), "dropout was drawn"
    mean, variance = norms_by_hand(average.network, inputs)
    norm = average.network[1]
    torch.testing.assert_close(norm.running_mean, mean)
    torch.testing.assert_close(norm.running_var, variance)
    assert not torch.allclose(norm.running_mean, network[1].running_mean, rtol=0.1)
    assert norm.momentum == 0.3 and not norm.training and not average.network.training
    assert average.batches == BATCHES


def test_other_buffers_are_copied():
    network = nn.Linear(2, 2)
    network.register_buffer("scale", torch.ones(2))
    average = Average(network, 0.9)
    network.scale.fill_(3.0)
    average.update(0)
    average.take_buffers([])
    assert torch.equal(average.network.scale, network.scale)
    assert average.batches == 0, "nothing is to be estimated"


def test_of_decay_0_the_network_itself_is_kept():
    network = nn.Linear(1, 1)
    average = Average(network, 0.0)
    before = network.weight.item()
    average.update(0)
    average.take_buffers([])
    assert average.network is network and network.weight.item() == before and network.weight.requires_grad
