"""Lookahead: what it returns to, when, and that a resumed run goes on as one that was not killed."""

import pytest
import torch
from torch import nn

from reread.training.lookahead import Lookahead


def train(network, lookahead, first, last):
    """A step adds its number to every weight."""
    for step in range(first, last):
        with torch.no_grad():
            for tensor in (*network.parameters(), network.running_mean):
                tensor += step + 1
        network.num_batches_tracked.add_(1)
        lookahead.update(step)


def test_weights_return_by_a_share_that_rises_as_the_cube_of_what_is_done():
    network = nn.BatchNorm1d(1)
    train(network, Lookahead(network, 0.5, steps_per_epoch=5, epochs=2), 0, 10)
    # Running statistics go the same way, but from 0; counts are not averaged.
    for tensor, start in ((network.weight, 1.0), (network.running_mean, 0.0)):
        slow = weight = start
        for step in range(10):
            weight += step + 1
            if step in (4, 9):
                kept = 0.5 * ((step + 1) / 10) ** 3
                slow = weight = kept * slow + (1 - kept) * weight
        assert tensor.item() == pytest.approx(weight)
    assert network.num_batches_tracked.item() == 10


def test_the_end_of_an_epoch_holds_all_that_the_next_one_needs():
    whole, resumed = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    train(whole, Lookahead(whole, 0.9, steps_per_epoch=7, epochs=2), 0, 14)
    train(resumed, Lookahead(resumed, 0.9, steps_per_epoch=7, epochs=2), 0, 7)
    train(resumed, Lookahead(resumed, 0.9, steps_per_epoch=7, epochs=2), 7, 14)
    assert all(
        torch.equal(parameter, other) for parameter, other in zip(whole.parameters(), resumed.parameters(), strict=True)
    )


def test_it_is_off_at_a_decay_of_zero():
    network, plain = nn.BatchNorm1d(1), nn.BatchNorm1d(1)
    train(network, Lookahead(network, 0.0, 5, 1), 0, 5)
    with torch.no_grad():
        plain.weight += 15
    assert torch.equal(network.weight, plain.weight)
