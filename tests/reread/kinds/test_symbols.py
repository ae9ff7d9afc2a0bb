"""The copying task: its sequences, the objective per position, and the network."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import models
from models.layers.cells import NAMES
from models.objectives import make_objective, to_probabilities
from models.symbol_recall import code_features
from reread.preprocessing.prepare import prepare
from reread.preprocessing.sources import copying, embedded
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared, open_prepared
from tests.reads import rows_of_test
from tests.reread.kinds.few_symbols import ALPHABET, POSITIONS, make_project

__all__ = ["rows_of_test"]


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), {}, (48, 16, 16), 5)


def prepared_at(project: Path, lag: int) -> Prepared:
    folders = (project / "data", project / "data.manifest.json", project / "prepared")
    return open_prepared(prepare("few", {"lag": lag}, *folders))


def test_sequences_are_symbols_then_distractors_then_requests(project):
    prepared = prepared_at(project, 3)
    raw = np.load(project / "data/few/symbols.npy")
    codes = prepared.arrays["codes"]
    assert codes.shape == (80, 2 * POSITIONS + 3)
    x = code_features(ALPHABET)[torch.from_numpy(codes.astype(np.int64))].numpy()
    assert np.array_equal(x[:, :2, :3], np.eye(ALPHABET)[raw[:, :2]]) and np.array_equal(prepared.labels, raw[:, :2])
    assert (prepared.description["alphabet"], prepared.description["positions"]) == (ALPHABET, POSITIONS)
    test = x[prepared.rows("test")]
    assert np.array_equal(test[:, 2:5, :3].argmax(2), raw[prepared.rows("test"), 2:5])
    assert (test[:, :, 3] == [1, 1, 0, 0, 0, 0, 0]).all() and (test[:, :, 4] == [0, 0, 0, 0, 0, 1, 1]).all()
    # In training the lag is at most as long, and after the last request there is nothing.
    lengths = (codes > 0).sum(axis=1)
    training = prepared.rows("train")
    assert set(lengths[training]) == {5, 6, 7} and set(lengths[prepared.rows("validation")]) == {7}
    for row in training:
        assert (x[row, lengths[row] - 2 : lengths[row], 4] == 1).all() and not x[row, lengths[row] :].any()


def test_rows_and_labels_are_the_same_at_every_lag(project):
    short, long = prepared_at(project, 1), prepared_at(project, 5)
    assert np.array_equal(short.labels, long.labels) and np.array_equal(
        short.arrays["codes"][:, :2], long.arrays["codes"][:, :2]
    )
    with pytest.raises(InputError, match="few.*lag is 6.*up to 5"):
        prepared_at(project, 6)


def test_the_published_rows_are_drawn_again_as_they_were():
    first, again = copying.rows(), copying.rows()
    assert np.array_equal(first.symbols, again.symbols) and first.symbols.shape == (23_100, 204)
    assert np.bincount(first.split).tolist() == list(copying.ROWS.values())
    # It is made when an experiment wants it.
    assert "copying" not in embedded()


def test_the_objective_is_cross_entropy_at_each_position():
    objective = make_objective({"name": "positions"}, {"positions": 2})
    scores = torch.tensor([[2.0, 0.0, -1.0, 0.0, 1.0, 0.5]])
    target = torch.tensor([[0, 2]], dtype=torch.uint8)
    each = functional.cross_entropy(scores.view(2, 3), torch.tensor([0, 2]))
    assert objective.loss(None, scores, target, ()) == objective.held_out_loss(scores, target) == each
    probabilities = to_probabilities(objective, scores.numpy())
    assert probabilities.reshape(2, 3).sum(axis=1) == pytest.approx([1, 1])
    assert objective.correct(scores, target).tolist() == [[True, False]]
    with pytest.raises(InputError, match="'positions'.*small"):
        make_objective({"name": "positions"}, {"name": "small"})


@pytest.mark.parametrize("cell", NAMES)
def test_the_network_reads_nothing_after_the_requests(cell, project):
    prepared = prepared_at(project, 3)
    torch.manual_seed(0)
    network = models.build("symbol_recall", {"hidden_size": 4, "cell": cell}, prepared.description)
    codes = torch.from_numpy(np.array(prepared.arrays["codes"]))
    with torch.no_grad():
        together = network(codes)
        for row in range(10):
            alone = network(codes[row : row + 1, : int((codes[row] > 0).sum())])
            torch.testing.assert_close(together[row : row + 1], alone)


def test_a_gru_learns_to_remember(project):
    """Over one distractor, in 150 steps on the training split."""
    prepared = prepared_at(project, 1)
    torch.manual_seed(0)
    network = models.build("symbol_recall", {"hidden_size": 16}, prepared.description)
    objective = make_objective({"name": "positions"}, prepared.description)
    codes, labels = (torch.from_numpy(np.array(array)) for array in (prepared.arrays["codes"], prepared.labels))
    optimiser = torch.optim.AdamW(network.parameters(), lr=0.03)
    for _ in range(150):
        optimiser.zero_grad()
        objective.loss(network, network(codes[:48]), labels[:48], ()).backward()
        optimiser.step()
    held_out = objective.correct(network(codes[48:]), labels[48:])
    assert held_out.double().mean() > 0.9
