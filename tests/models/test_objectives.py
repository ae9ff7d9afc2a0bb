"""The objective of classification: losses, weights, probabilities and right answers by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from models.objectives import make_objective, scores, to_probabilities
from models.objectives.classification import Classification, balanced_weights
from reread.storage.errors import InputError

LOGITS = torch.tensor([[2.0, -1.0], [0.5, 0.0]])
ONE, SEVERAL = torch.tensor([0, 1]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])


def objective(task="single-label", labels=None, **settings):
    return make_objective({"name": "classification", **settings}, {"task": task, "name": "small"}, labels)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_losses_are_the_field_s_own(smoothing):
    spread = functional.one_hot(ONE, 2) * (1 - smoothing) + smoothing / 2
    expected = -(spread * LOGITS.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(objective(label_smoothing=smoothing).loss(None, LOGITS, ONE, ()), expected)
    soft = SEVERAL * (1 - smoothing) + smoothing / 2
    p = torch.sigmoid(LOGITS)
    expected = -(soft * p.log() + (1 - soft) * (1 - p).log()).mean()
    several = objective("multi-label", label_smoothing=smoothing)
    torch.testing.assert_close(several.loss(None, (LOGITS, None), SEVERAL, ()), expected)


@pytest.mark.parametrize(("task", "target"), [("single-label", ONE), ("multi-label", SEVERAL)])
def test_the_loss_of_held_out_rows_has_neither_smoothing_nor_weights(task, target):
    labels = np.array([[1, 0], [0, 0], [0, 1], [0, 1]])
    settings = {"class_weights": "balanced"} if task == "multi-label" else {}
    of_settings = objective(task, labels, label_smoothing=0.3, **settings)
    plain = objective(task, label_smoothing=0.0)
    loss = of_settings.held_out_loss(LOGITS, target)
    torch.testing.assert_close(loss, plain.loss(None, LOGITS, target, ()))
    assert loss != of_settings.loss(None, LOGITS, target, ())


def test_balanced_weights_give_both_sides_of_a_class_the_same_weight():
    labels = np.array([[1, 0, 1], [0, 0, 1], [0, 0, 0], [0, 0, 1]], np.uint8)
    weights = balanced_weights(labels)
    torch.testing.assert_close(weights, torch.tensor([[4 / 6, 1, 2.0], [2.0, 1, 4 / 6]]))
    several = objective("multi-label", labels, label_smoothing=0.0, class_weights="balanced")
    logits, target = torch.zeros(1, 3), torch.tensor([[1.0, 0.0, 0.0]])
    expected = np.log(2) * (2.0 + 1.0 + 2.0) / 3
    assert several.loss(None, logits, target, ()).item() == pytest.approx(expected)
    # Without the labels of the training split, as in evaluation, and where nothing is balanced, all weigh the same.
    for plain in (objective("multi-label", class_weights="balanced"), objective("multi-label", labels)):
        assert plain.weights is None


def test_probabilities_and_right_answers():
    single, several = objective(), objective("multi-label")
    torch.testing.assert_close(single.probabilities(LOGITS), LOGITS.softmax(1))
    torch.testing.assert_close(several.probabilities(LOGITS), LOGITS.sigmoid())
    assert single.correct(LOGITS, ONE).tolist() == [True, False]
    assert several.correct(LOGITS, SEVERAL).tolist() == [[True, False], [False, False]]
    probabilities = to_probabilities(single, LOGITS.numpy())
    assert probabilities.dtype == np.float32 and probabilities.sum(axis=1) == pytest.approx(1)


def test_scores_are_the_first_of_several_outputs():
    assert scores(LOGITS) is LOGITS and scores((LOGITS, ONE)) is LOGITS


def test_balanced_weights_of_single_labels_are_refused():
    with pytest.raises(InputError, match="class_weights is balanced, and rows of small have one label"):
        objective(class_weights="balanced")


def chexnet(labels=None, task="multi-label"):
    return make_objective({"name": "chexnet"}, {"task": task, "name": "small"}, labels)


def test_chexnet_weighs_each_side_of_a_class_by_the_share_of_the_other():
    """Two of eight rows have the class: w+ = 6/8, w- = 2/8."""
    labels = np.array([[1], [1], [0], [0], [0], [0], [0], [0]], np.uint8)
    logits, target = torch.tensor([[0.3], [-0.8]]), torch.tensor([[1.0], [0.0]])
    p = torch.sigmoid(logits)
    expected = -(6 / 8 * p[0].log() + 2 / 8 * (1 - p[1]).log()) / 2
    weighted = chexnet(labels)
    losses = (weighted.loss(None, logits, target, ()), weighted.held_out_loss(logits, target))
    for loss in (*losses, weighted.comparable_loss(logits, target)):
        torch.testing.assert_close(loss, expected.squeeze())
    torch.testing.assert_close(
        chexnet().held_out_loss(logits, target), functional.binary_cross_entropy_with_logits(logits, target)
    )
    torch.testing.assert_close(weighted.probabilities(logits), p)
    assert weighted.correct(logits, target).tolist() == [[True], [True]]


def test_chexnet_is_balanced_weights_scaled_per_class():
    labels = (np.random.default_rng(0).random((200, 3)) < [0.05, 0.3, 0.6]).astype(np.uint8)
    share = torch.from_numpy(labels.mean(axis=0)).float()
    torch.testing.assert_close(chexnet(labels).weights, balanced_weights(labels) * 2 * share * (1 - share))


def test_chexnet_keeps_its_weights_on_each_device():
    """A captured CUDA graph goes on reading the GPU's after validation asked for the CPU's."""
    weighted = chexnet(np.array([[1], [0], [0]], np.uint8))
    devices = [torch.device("cpu"), torch.device("meta")]
    first = [weighted.weights_on(device) for device in devices]
    assert all(weighted.weights_on(device) is weights for device, weights in zip(devices, first, strict=True))
    assert [weights.device.type for weights in first] == ["cpu", "meta"]


def test_chexnet_of_single_labels_is_refused():
    with pytest.raises(InputError, match="chexnet.* small"):
        chexnet(task="single-label")


@pytest.mark.parametrize("several", [False, True])
def test_a_curve_compares_the_loss_of_training(several):
    logits = torch.randn(6, 3)
    target = torch.randint(0, 2, (6, 3)).float() if several else torch.randint(0, 3, (6,))
    weights = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]) if several else None
    objective = Classification(0.1, several, weights)
    assert torch.equal(objective.comparable_loss(logits, target), objective.loss(None, logits, target, ()))
    assert not torch.equal(objective.comparable_loss(logits, target), objective.held_out_loss(logits, target))
    assert objective.weights is weights  # a captured graph reads it there
