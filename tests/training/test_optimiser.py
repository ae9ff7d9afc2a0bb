"""The learning rate of each step, and which parameters decay."""

import math

import pytest
import torch
from torch import nn

from models.layers.embedding import WordEmbedding
from storage.errors import InputError
from training.optimiser import learning_rate, make_optimiser, set_rate
from training.settings import Settings

SETTINGS = Settings(learning_rate=0.1, warmup_epochs=2, maximum_epochs=10)


def test_the_rate_rises_in_a_line_to_the_peak_and_falls_as_a_cosine():
    rates = [learning_rate(step, 5, SETTINGS) for step in range(50)]
    assert rates[:10] == pytest.approx([0.1 * (step + 1) / 11 for step in range(10)])
    assert rates[10] == pytest.approx(0.1) == max(rates)
    assert rates[30] == pytest.approx(0.05)
    assert rates[20] == pytest.approx(0.05 * (1 + math.cos(math.pi / 4)))
    assert rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.001


def test_without_a_warm_up_the_first_step_has_the_peak():
    assert learning_rate(0, 5, Settings(learning_rate=0.1, warmup_epochs=0)) == 0.1


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_norms_biases_and_other_vectors_do_not_decay(name):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    settings = Settings(optimizer=name, learning_rate=0.5, weight_decay=0.1, momentum=0.0)
    optimiser = make_optimiser(network, settings)
    before = {key: value.clone() for key, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    for key, value in network.named_parameters():
        torch.testing.assert_close(value, before[key] * (0.95 if value.ndim == 2 else 1.0))


def test_sgd_is_nesterov_s():
    weight = nn.Parameter(torch.zeros(1, 1))
    network = nn.Module()
    network.weight = weight
    optimiser = make_optimiser(network, Settings(optimizer="sgd", learning_rate=1.0, momentum=0.5, weight_decay=0))
    for expected in (-1.5, -1.5 - 1.75):  # momentum 1, then 1.5: the step is gradient + 0.5 momentum
        weight.grad = torch.ones(1, 1)
        optimiser.step()
        assert weight.item() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_word_vectors_learn_at_their_share_of_the_rate(name):
    """Of gradients of 1 a step is the rate by either: sgd's by definition, and AdamW's first by its own scale."""
    network = nn.Sequential(WordEmbedding(5, 3), nn.Linear(3, 2))
    settings = Settings(optimizer=name, word_vector_rate=0.05, weight_decay=0, momentum=0)
    optimiser = make_optimiser(network, settings)
    before = {key: value.clone() for key, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    set_rate(optimiser, 0.2)
    optimiser.step()
    for key, value in network.named_parameters():
        torch.testing.assert_close(before[key] - value, torch.full_like(value, 0.01 if key == "0.weight" else 0.2))


def test_word_vectors_decay_as_other_matrices_by_their_rate():
    network = nn.Sequential(WordEmbedding(5, 3))
    optimiser = make_optimiser(network, Settings(word_vector_rate=0.5, weight_decay=0.1))
    before = network[0].weight.clone()
    network[0].weight.grad = torch.zeros_like(before)
    set_rate(optimiser, 0.2)
    optimiser.step()
    torch.testing.assert_close(network[0].weight, before * (1 - 0.2 * 0.5 * 0.1))


def test_a_rate_of_word_vectors_needs_word_vectors():
    with pytest.raises(InputError, match="word_vector_rate needs word vectors, and Linear has none: set .* to 1"):
        make_optimiser(nn.Linear(3, 2), Settings(word_vector_rate=0.5))
