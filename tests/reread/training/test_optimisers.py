"""The optimisers: steps by hand and beside torch's own, which parameters decay, and each group's learning rate."""

import math

import pytest
import torch
from torch import nn

from models.layers.embedding import WordEmbedding
from models.layers.parameter_groups import parameter_groups
from reread.training.optimisers import REGISTRY, make_optimiser, set_learning_rate
from reread.training.optimisers.muon import directions, orthogonal
from reread.training.settings import Settings

NAMES = REGISTRY.available()


def optimiser_of(network, learning_rate=0.1, **optimizer):
    return make_optimiser(network, Settings(optimizer=optimizer, learning_rate=learning_rate))


def one_weight(*values):
    """A network of one matrix."""
    network = nn.Module()
    network.weight = nn.Parameter(torch.tensor([values]))
    return network


@pytest.mark.parametrize("name", NAMES)
def test_norms_biases_and_other_vectors_do_not_decay(name):
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2, bias=False))
    optimiser = optimiser_of(network, 0.5, name=name, weight_decay=0.1)
    before = {key: value.clone() for key, value in network.named_parameters()}
    for parameter in network.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    # sgd looks ahead by its momentum.
    shrunk = {"adamw": 0.95, "muon": 0.95, "lars": 0.95, "sgd": 1 - 0.5 * 0.1 * 1.9}[name]
    for key, value in network.named_parameters():
        torch.testing.assert_close(value, before[key] * (shrunk if value.ndim == 2 else 1.0))


@pytest.mark.parametrize("name", NAMES)
def test_word_vectors_learn_at_their_share_of_the_rate(name):
    def step(lr_scale):
        torch.manual_seed(0)
        network = nn.Sequential(WordEmbedding(5, 3), nn.Linear(3, 2))
        network.parameter_groups = lambda: parameter_groups(network, network[0], lr_scale)
        optimiser = optimiser_of(network, name=name, weight_decay=0)
        before = [value.clone() for value in network.parameters()]
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        set_learning_rate(optimiser, 0.2)
        optimiser.step()
        return [old - new.detach() for old, new in zip(before, network.parameters(), strict=True)]

    (slow, *others), (fast, *same) = step(0.05), step(1.0)
    torch.testing.assert_close(slow, 0.05 * fast)
    assert fast.abs().min() > 0
    for change, other in zip(others, same, strict=True):
        assert torch.equal(change, other)


def test_word_vectors_decay_as_other_matrices_by_their_rate():
    network = nn.Sequential(WordEmbedding(5, 3))
    network.parameter_groups = lambda: parameter_groups(network, network[0], 0.5)
    optimiser = optimiser_of(network, name="adamw", weight_decay=0.1)
    before = network[0].weight.clone()
    network[0].weight.grad = torch.zeros_like(before)
    set_learning_rate(optimiser, 0.2)
    optimiser.step()
    torch.testing.assert_close(network[0].weight, before * (1 - 0.2 * 0.5 * 0.1))


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_without_a_gradient_stays_as_it_is(name):
    network = nn.Sequential(nn.Linear(3, 2), nn.Linear(3, 2))
    before = [value.detach().clone() for value in network.parameters()]
    network[0].weight.grad = torch.ones(2, 3)
    optimiser_of(network, name=name).step()
    moved = [not torch.equal(old, new) for old, new in zip(before, network.parameters(), strict=True)]
    assert moved == [True, False, False, False]


@pytest.mark.parametrize("name", NAMES)
def test_a_step_computes_the_loss_of_a_closure_and_returns_it(name):
    network = one_weight(1.0, 2.0)

    def closure():
        loss = network.weight.square().sum()
        loss.backward()
        return loss

    assert optimiser_of(network, name=name).step(closure).item() == 5
    assert (network.weight < torch.tensor([[1.0, 2.0]])).all()


def test_adamw_is_torch_s():
    settings = {"beta1": 0.6, "beta2": 0.7, "epsilon": 0.05, "weight_decay": 0.1}
    ours, other = one_weight(1.0, -2.0), one_weight(1.0, -2.0)
    optimiser = optimiser_of(ours, name="adamw", **settings)
    torchs = torch.optim.AdamW(other.parameters(), lr=0.1, betas=(0.6, 0.7), eps=0.05, weight_decay=0.1)
    for gradient in ([0.3, -0.2], [1.0, 0.5], [-0.1, 0.4]):
        for network in (ours, other):
            network.weight.grad = torch.tensor([gradient])
        optimiser.step()
        torchs.step()
    torch.testing.assert_close(ours.weight, other.weight)


@pytest.mark.parametrize(
    ("momentum", "nesterov", "steps"),
    [(0.5, True, (-1.5, -1.5 - 1.75)), (0.5, False, (-1.0, -2.5)), (0.0, True, (-1.0, -2.0))],
)
def test_sgd_is_nesterov_s_unless_set_otherwise(momentum, nesterov, steps):
    network = one_weight(0.0)
    optimiser = optimiser_of(network, 1.0, name="sgd", momentum=momentum, weight_decay=0, nesterov=nesterov)
    for expected in steps:
        network.weight.grad = torch.ones(1, 1)
        optimiser.step()
        assert network.weight.item() == pytest.approx(expected)


def test_sgd_decays_vectors_too_where_set():
    """As the authors' code of DenseNet does: one weight decay for every parameter."""
    torch.manual_seed(0)
    network, other = (nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)) for _ in range(2))
    other.load_state_dict(network.state_dict())
    ours = optimiser_of(network, name="sgd", weight_decay=0.01, decay_vectors=True)
    torchs = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
    for _ in range(3):
        for parameter, same in zip(network.parameters(), other.parameters(), strict=True):
            parameter.grad = torch.randn_like(parameter)
            same.grad = parameter.grad.clone()
        ours.step()
        torchs.step()
    for parameter, same in zip(network.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, same)


def test_lars_by_hand():
    """Two steps of a matrix with norm 0.5 and gradients of norm 13, then 0.5."""
    network = one_weight(0.3, 0.4)
    optimiser = optimiser_of(network, 2.0, name="lars", momentum=0.5, weight_decay=0.1, trust_coefficient=0.01)
    weight, velocity = torch.tensor([0.3, 0.4]), torch.zeros(2)
    for gradient in (torch.tensor([5.0, -12.0]), torch.tensor([0.3, 0.4])):
        network.weight.grad = gradient[None].clone()
        optimiser.step()
        norm = math.hypot(*weight.tolist())
        ratio = 0.01 * norm / (math.hypot(*gradient.tolist()) + 0.1 * norm)
        velocity = 0.5 * velocity + 2.0 * ratio * (gradient + 0.1 * weight)
        weight = weight - velocity
        torch.testing.assert_close(network.weight.detach()[0], weight)


def test_lars_leaves_vectors_and_zeros_without_a_trust_ratio():
    network = nn.Linear(2, 2)
    nn.init.zeros_(network.weight)
    optimiser = optimiser_of(network, 0.5, name="lars", momentum=0.0)
    bias = network.bias.detach().clone()
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    torch.testing.assert_close(network.weight.detach(), torch.full((2, 2), -0.5))
    torch.testing.assert_close(network.bias.detach(), bias - 0.5)


def test_muon_is_torch_s_of_matrices_and_adamw_of_vectors():
    torch.manual_seed(0)
    ours, theirs = nn.Linear(6, 4), nn.Linear(6, 4)
    theirs.load_state_dict(ours.state_dict())
    optimiser = optimiser_of(ours, 0.02, name="muon", momentum=0.8, weight_decay=0.1, beta1=0.6, beta2=0.7)
    muon = torch.optim.Muon([theirs.weight], lr=0.02, momentum=0.8, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    adamw = torch.optim.AdamW([theirs.bias], lr=0.02, betas=(0.6, 0.7), weight_decay=0.0)
    for _ in range(3):
        x = torch.randn(5, 6)
        for network in (ours, theirs):
            network.zero_grad()
            network(x).square().sum().backward()
        for rule in (optimiser, muon, adamw):
            rule.step()
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_muon_makes_kernels_orthogonal_and_leaves_word_vectors_to_adamw():
    torch.manual_seed(0)
    network = nn.Sequential(WordEmbedding(7, 5), nn.Conv2d(4, 8, 3, bias=False))
    network.parameter_groups = lambda: parameter_groups(network, network[0])
    optimiser = optimiser_of(network, 0.1, name="muon", weight_decay=0)
    before = [value.detach().clone() for value in network.parameters()]
    for parameter in network.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimiser.step()
    words, kernel = (old - new.detach() for old, new in zip(before, network.parameters(), strict=True))
    torch.testing.assert_close(words, 0.1 * network[0].weight.grad.sign(), rtol=1e-3, atol=1e-3)
    singular = torch.linalg.svdvals(kernel.flatten(1)) / (0.1 * 0.2 * math.sqrt(36))
    assert singular.min() > 0.6 and singular.max() < 1.3


@pytest.mark.parametrize("shape", [(3, 8), (8, 3), (5, 5)])
def test_an_orthogonal_matrix_has_singular_values_near_one(shape):
    torch.manual_seed(1)
    singular = torch.linalg.svdvals(orthogonal(torch.randn(shape)))
    assert singular.min() > 0.6 and singular.max() < 1.3


def test_updates_of_one_shape_are_orthogonal_together_as_each_alone():
    torch.manual_seed(2)
    updates = [torch.randn(shape) for shape in [(4, 6), (8, 2, 3, 3), (4, 6), (5, 3), (8, 2, 3, 3)]]
    for update, together in zip(updates, directions(*updates), strict=True):
        (alone,) = directions(update)
        assert together.shape == update.shape
        # Two bfloat16 products may be rounded differently.
        torch.testing.assert_close(together, alone, rtol=0.02, atol=0.02)
