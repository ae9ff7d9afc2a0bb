"""Capsules against the paper: parameters, routing and squashing by hand, margin loss, reconstruction."""

import pytest
import torch
from torch.nn import functional

import models
from models import capsnet
from models.layers import parameter_count
from models.objectives import make_objective
from reread.storage.errors import InputError


def description(size=28, task="single-label", channels=1):
    arrays = {"images": {"shape": [100, size, size, channels]}}
    normalisation = {"mean": [0.1307] * channels, "deviation": [0.3081] * channels}
    return {"name": "m", "kind": "image", "task": task, "classes": list("0123456789"), "arrays": arrays} | normalisation


def small(task="single-label", **settings):
    torch.manual_seed(0)
    given = {"channels": 6, "primary_types": 2, "primary_dim": 4, "capsule_dim": 5, "decoder_units": (8,)}
    return models.build("capsnet", given | settings, description(18, task))


@pytest.mark.parametrize(
    ("model", "settings", "parameters"),
    [
        ("capsnet", {}, 8_215_568),
        ("capsnet", {"reconstruction": False}, 6_804_224),
        ("capsnet_baseline", models.sizes("capsnet_baseline")["35.4M"], 35_445_522),
        ("capsnet_baseline", models.sizes("capsnet_baseline")["8.2M"], 8_201_976),
    ],
)
def test_parameters_are_those_of_the_paper(model, settings, parameters):
    """Section 5: 8.2M, 6.8M without reconstruction, and 35.4M in the baseline."""
    with torch.device("meta"):
        assert parameter_count(models.build(model, settings, description())) == parameters


def plain_route(votes, dim, iterations):
    """Procedure 1 as it is printed, by sums over [N, P, K, D]."""
    votes = votes.movedim(0, 1).unflatten(2, (-1, dim))
    logits = torch.zeros(votes.shape[:3], dtype=votes.dtype)
    for _ in range(iterations):
        total = (logits.softmax(dim=2).unsqueeze(3) * votes).sum(dim=1)
        length = total.norm(dim=2, keepdim=True)
        capsules = length**2 / (1 + length**2) * total / length
        logits = logits + (votes * capsules.unsqueeze(1)).sum(dim=3)
    return capsules


@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_routing_is_the_paper_s_and_its_gradient_too_where_all_of_it_is_wanted(iterations):
    torch.manual_seed(1)
    votes = torch.randn(7, 3, 4 * 5, requires_grad=True)
    expected = plain_route(votes, 5, iterations)
    weights = torch.randn_like(expected)
    (gradient,) = torch.autograd.grad((expected * weights).sum(), votes)
    for all_of_it in (True, False):
        routed = capsnet.route(votes, 5, iterations, all_of_it)
        torch.testing.assert_close(routed, expected)
        (own,) = torch.autograd.grad((routed * weights).sum(), votes)
        equal = torch.allclose(own, gradient, rtol=1e-4, atol=1e-6)
        # With one iteration the coupling depends on nothing.
        assert equal == (all_of_it or iterations == 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_the_first_convolution_is_pytorch_s(channels):
    torch.manual_seed(2)
    network = models.build("capsnet", {"channels": 6, "primary_types": 2}, description(19, channels=channels))
    images = torch.randn(3, channels, 19, 19)
    expected, first_maps = functional.relu(network.convolution(images)), network.first_maps(images)
    torch.testing.assert_close(first_maps, expected)
    assert first_maps.is_contiguous(memory_format=torch.channels_last)
    weights = torch.randn_like(expected)
    gradients = [
        torch.autograd.grad((maps * weights).sum(), list(network.convolution.parameters()))
        for maps in (first_maps, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_squashing_keeps_directions_and_has_a_gradient_at_zero():
    vectors = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.03, 0.04]], requires_grad=True)
    squashed = capsnet.squash(vectors)
    expected = torch.tensor([[3 / 5, 4 / 5], [0, 0], [3 / 5, 4 / 5]]) * torch.tensor(
        [[25 / 26], [0], [0.0025 / 1.0025]]
    )
    torch.testing.assert_close(squashed, expected)
    squashed.sum().backward()
    assert vectors.grad.isfinite().all()


def test_in_half_precision_routing_is_close_and_capsules_are_float32():
    network = small().eval()
    images = torch.randn(3, 1, 18, 18)
    exact = network(images)
    with torch.autocast("cpu", torch.bfloat16):
        scores = network(images)
    assert scores.dtype == torch.float32 and (scores < 1).all()
    torch.testing.assert_close(scores, exact, rtol=0.05, atol=0.01)


def test_the_decoder_computes_in_the_precision_of_the_forward_pass():
    network, mask = small(), torch.ones(2, 10)
    images = torch.randn(2, 1, 18, 18)
    with torch.autocast("cpu", torch.bfloat16):
        _, capsules = network(images)
    rounded = network.reconstruct(capsules, mask)
    _, again = network(images)
    exact = network.reconstruct(capsules, mask)
    assert rounded.dtype == capsules.dtype == again.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.05, atol=0.01)


def test_the_margin_loss_is_the_paper_s():
    objective = make_objective({"name": "margin"}, description())
    lengths = torch.tensor([[0.95, 0.3, 0.05], [0.2, 0.6, 0.1]])
    first, second = 0.5 * 0.2**2, 0.5 * 0.1**2 + 0.3**2
    assert objective.held_out_loss(lengths, torch.tensor([0, 1])).item() == pytest.approx((first + second) / 2)
    assert objective.correct(lengths, torch.tensor([0, 2])).tolist() == [True, False]
    torch.testing.assert_close(objective.probabilities(lengths).sum(dim=1), torch.ones(2))


def test_two_digits_are_right_where_their_capsules_are_the_longest():
    objective = make_objective({"name": "margin", "labels_per_row": 2}, description(task="multi-label"))
    target = torch.tensor([[1.0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]])
    lengths = torch.tensor([[0.9, 0.4, 0.3, 0.1], [0.9, 0.4, 0.5, 0.1], [0.1, 0.2, 0.3, 0.4]])
    assert objective.correct(lengths, target).tolist() == [True, False, True]
    assert torch.equal(objective.probabilities(lengths), lengths)


def test_pixels_are_reconstructed_from_the_capsule_of_the_label():
    network, objective = small(), make_objective({"name": "margin"}, description())
    pixels, target = torch.rand(4, 1, 18, 18), torch.tensor([0, 3, 9, 3])
    images = (pixels - 0.1307) / 0.3081
    lengths, capsules = network(images)
    alone = torch.zeros(4, 10, 5)
    alone[torch.arange(4), target] = capsules[torch.arange(4), target]
    squares = (network.decoder(alone.flatten(1)) - pixels.flatten(1)).square().sum(dim=1).mean()
    loss = objective.loss(network, (lengths, capsules), target, (images,))
    torch.testing.assert_close(loss, objective.held_out_loss(lengths, target) + 0.0005 * squares)
    loss.backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    off = make_objective({"name": "margin", "reconstruction_weight": 0.0}, description())
    assert off.loss(network, (lengths, capsules), target, (images,)) == objective.held_out_loss(lengths, target)


def test_each_of_two_digits_is_decoded_alone():
    network = small("multi-label")
    objective = make_objective({"name": "margin", "labels_per_row": 2}, description(18, "multi-label"))
    pixels = torch.rand(2, 1, 18, 18)
    target = functional.one_hot(torch.tensor([2, 5]), 10).float()
    target[0, 7] = 1
    capsules = network.capsules((pixels - 0.1307) / 0.3081)

    def decoded(row, digit):
        return network.reconstruct(capsules[row : row + 1], functional.one_hot(torch.tensor([digit]), 10).float())[0]

    first, second = decoded(0, 2), decoded(0, 7)
    expected = torch.stack([first + second - first * second, decoded(1, 5)])
    reconstruction = objective._reconstruction(network, capsules, target.bool())
    torch.testing.assert_close(reconstruction, expected)


def test_without_a_decoder_and_for_prediction_there_are_scores_alone():
    images = torch.randn(2, 1, 18, 18)
    network, target = small(reconstruction=False), torch.tensor([1, 4])
    scores, objective = network(images), make_objective({"name": "margin"}, description())
    assert objective.loss(network, scores, target, (images,)) == objective.held_out_loss(scores, target)
    assert small().eval()(images).shape == (2, 10)
    # Nor is anything decoded where the pixels of the data were not normalised.
    bare = make_objective({"name": "margin"}, {"task": "single-label"})
    network = small().train()
    lengths, capsules = network(images)
    assert bare.loss(network, (lengths, capsules), target, (images,)) == objective.held_out_loss(lengths, target)


@pytest.mark.parametrize(("model", "settings"), [("capsnet", {}), ("capsnet_baseline", {"padded": False})])
def test_images_too_small_are_refused(model, settings):
    with pytest.raises(InputError, match=f"12 x 12 pixels are too small for {model}"):
        models.build(model, settings, description(12))


def test_a_wrong_number_of_convolutions_is_refused():
    with pytest.raises(InputError, match="channels"):
        models.settings("capsnet_baseline", {"channels": [4, 4]})
