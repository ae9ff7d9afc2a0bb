"""A network's code is checked before its first epoch: scores, padding, gradients and export, in one line."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import models
from reread.batches import collation
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.training import network_check
from reread.training.network_check import check_network, few_rows
from tests.golden.cases import CASES, TRAINING, Case
from tests.golden.data import WRITERS

SETTINGS = {"embedding_dim": 8}
OBJECTIVE = {"name": "classification", "label_smoothing": 0.1, "class_weights": "none"}


class Convolution(nn.Module):
    """A maximum over features of words; ``masked``: not over padding."""

    def __init__(self, masked):
        super().__init__()
        self.masked = masked
        self.embedding = nn.Embedding(30, 4, padding_idx=0)
        self.convolution = nn.Conv1d(4, 6, 1)
        self.classifier = nn.Linear(6, 3)

    def forward(self, tokens, word_counts, sentence_counts):
        vectors = self.embedding(tokens.flatten(1)).transpose(1, 2)
        features = self.convolution(vectors).relu()
        if self.masked:
            real = torch.arange(tokens.shape[2]) < word_counts.unsqueeze(2)
            features = features.masked_fill(~real.flatten(1).unsqueeze(1), 0)
        return self.classifier(features.amax(dim=2))


class Forgetful(nn.Module):
    """It has a layer that it does not use, or a branch that export cannot follow."""

    def __init__(self, branch):
        super().__init__()
        self.branch = branch
        self.used, self.unused = nn.Linear(5, 3), nn.Linear(5, 3)

    def forward(self, rows):
        if self.branch and rows.sum() > 0:
            return self.unused(rows) + self.used(rows)
        return self.used(rows) if not self.branch else self.used(rows) - self.unused(rows)


class Changed(nn.Module):
    """A mean of word vectors with ``change`` applied to it."""

    def __init__(self, change, outputs=3):
        super().__init__()
        self.change = change
        self.embedding = nn.Embedding(30, 4)
        self.classifier = nn.Linear(4, outputs)

    def forward(self, tokens, word_counts, sentence_counts):
        return self.classifier(self.change(self.embedding(tokens[:, 0, 0])))


@pytest.fixture
def prepared(text_directory):
    return open_prepared(text_directory)


def test_a_network_of_ours_passes_and_is_checked_once(tmp_path, prepared, monkeypatch):
    state = torch.random.get_rng_state()
    check_network("word_average", SETTINGS, OBJECTIVE, prepared, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    assert torch.equal(torch.random.get_rng_state(), state)
    monkeypatch.setattr(models, "build", None)  # nothing is built again
    check_network("word_average", SETTINGS, OBJECTIVE, prepared, tmp_path)
    with pytest.raises(TypeError):
        check_network("word_average", {"embedding_dim": 9}, OBJECTIVE, prepared, tmp_path)


def test_what_fails_is_checked_again(tmp_path, prepared, monkeypatch):
    monkeypatch.setattr(models, "build", lambda *_: Convolution(masked=False))
    for _ in range(2):
        with pytest.raises(InputError, match=r"models/word_average.py.*padding"):
            check_network("word_average", SETTINGS, OBJECTIVE, prepared, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows - rows.mean(dim=0), "other rows of its batch"),
        (nn.BatchNorm1d(4, track_running_stats=False), "other rows of its batch"),
        (lambda rows: functional.dropout(rows, 0.5), "random in evaluation mode"),
        (lambda rows: rows + torch.randn_like(rows), "random in evaluation mode"),
        (lambda rows: rows / (rows.sum() * 0), r"returns (nan|-?inf)"),
        (lambda rows: rows.unsqueeze(1), r"\[8, 1, 3\].*\[8, 3\]"),
    ],
)
def test_scores_that_are_of_no_use_are_refused(change, said, prepared):
    torch.manual_seed(0)
    with pytest.raises(InputError, match=rf"models/mine.py.*{said}"):
        network_check.refuse_wrong_scores(Changed(change).eval(), "mine", prepared, few_rows(prepared))


def test_scores_of_a_network_that_is_random_in_training_alone_are_accepted(prepared):
    rows = few_rows(prepared)
    for layer in (nn.Dropout(0.5), nn.BatchNorm1d(4)):
        network_check.refuse_wrong_scores(Changed(layer).eval(), "mine", prepared, rows)
    network_check.refuse_wrong_scores(Changed(nn.Identity()).eval(), "mine", prepared, rows[:1])


def test_scores_of_another_shape_are_refused_before_all_else(tmp_path, prepared, monkeypatch):
    monkeypatch.setattr(models, "build", lambda *_: Changed(torch.randn_like, outputs=4))
    with pytest.raises(InputError, match=r"models/word_average.py.*\[8, 4\].*3 classes.*\[8, 3\]"):
        check_network("word_average", SETTINGS, OBJECTIVE, prepared, tmp_path)


def test_a_network_without_a_weight_to_train_is_refused(prepared):
    network = Changed(nn.Identity()).requires_grad_(False).eval()
    with pytest.raises(InputError, match=r"models/mine.py.*no weight"):
        network_check.refuse_wrong_scores(network, "mine", prepared, few_rows(prepared))


def test_a_maximum_over_padding_is_refused_and_one_with_a_mask_is_not(prepared):
    rows = few_rows(prepared)
    torch.manual_seed(0)
    network_check.refuse_padding(Convolution(masked=True).eval(), "mine", prepared, rows)
    with pytest.raises(InputError, match=r"models/mine.py.*padding"):
        network_check.refuse_padding(Convolution(masked=False).eval(), "mine", prepared, rows)


class Detach(nn.Module):
    def forward(self, rows):
        return rows.detach()


class Squares:
    """A loss that depends on a layer of the network itself, as a reconstruction does; or on the scores alone."""

    def __init__(self, decodes):
        self.decodes = decodes

    def loss(self, network, outputs, target, inputs):
        loss = (outputs - target).square().sum()
        return loss + network.unused(inputs[0]).square().sum() if self.decodes else loss


def test_a_weight_without_a_gradient_is_named_unless_the_loss_depends_on_it():
    inputs, target = (torch.randn(4, 5),), torch.randn(4, 3)
    with pytest.raises(InputError, match=r"models/mine.py.*'unused.weight'"):
        network_check.refuse_no_gradient(Forgetful(branch=False), "mine", inputs, target, Squares(decodes=False))
    network_check.refuse_no_gradient(Forgetful(branch=False), "mine", inputs, target, Squares(decodes=True))
    detached = nn.Sequential(nn.Linear(5, 3), Detach())
    with pytest.raises(InputError, match=r"models/mine.py.*'0.weight'"):
        network_check.refuse_no_gradient(detached, "mine", inputs, target, Squares(decodes=False))


@pytest.mark.parametrize("model", models.available())
def test_every_network_of_ours_passes(model, tmp_path):
    data = {"image": "images", None: "text"}.get(models.kind(model), models.kind(model))
    # One that has no golden run yet is checked at its size for tests.
    new = Case(model, data, dataclasses.asdict(models.debug(model)))
    case = next((case for case in CASES.values() if case.model == model), new)
    WRITERS[case.data](tmp_path / "prepared")
    objective = case.training.get("objective", TRAINING["objective"])
    check_network(model, case.network, objective, open_prepared(tmp_path / "prepared"), tmp_path / "passed")
    assert len(list((tmp_path / "passed").iterdir())) == 1


def test_a_branch_on_values_cannot_be_exported():
    with pytest.raises(InputError, match=r"models/mine.py.*export"):
        network_check.refuse_no_export(Forgetful(branch=True).eval(), "mine", (torch.randn(4, 5),))


def test_the_rows_go_from_the_shortest_to_the_longest(prepared):
    sizes = collation.sizes(prepared, few_rows(prepared))
    every = collation.sizes(prepared, prepared.rows("train"))
    assert (np.diff(sizes) >= 0).all() and sizes[0] == every.min() and sizes[-1] == every.max()
