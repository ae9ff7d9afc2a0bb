"""When a run stops, which epoch is its best, and the score of several labels."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from reread.training.settings import Settings
from reread.training.state import COLUMNS, State
from reread.training.validation import Validation, macro_auroc

SETTINGS = Settings(patience=2, max_epochs=6)


def after(*epochs):
    state = State()
    for loss, score in epochs:
        assert state.stopped(SETTINGS) is None
        state.record(dict.fromkeys(COLUMNS, 0.5), Validation(loss, score, score))
    return state


def test_the_best_epoch_has_the_highest_score_and_of_equals_the_lowest_loss():
    assert after((1.0, 0.5), (0.9, 0.7), (0.8, 0.7), (0.7, 0.6)).best_epoch == 3
    assert after((1.0, 0.5), (0.9, 0.7), (0.95, 0.7)).best_epoch == 2
    assert after((1.0, 0.5), (1.0, 0.5)).best_epoch == 1


@pytest.mark.parametrize(
    ("epochs", "stopped"),
    [
        ([(1.0, 0.5), (1.1, 0.5)], None),
        ([(1.0, 0.5), (1.1, 0.5), (1.0, 0.4)], "patience"),
        ([(1.0, 0.5), (0.9, 0.4), (0.8, 0.4), (0.7, 0.4)], None),  # the loss still falls
        ([(1.0, 0.5), (1.1, 0.6), (1.2, 0.7), (1.3, 0.8)], None),  # the score still rises
        ([(1.0, 0.5), (0.9, 0.6), (0.95, 0.7), (0.9, 0.7), (0.9, 0.6)], "patience"),
        ([(1 / (n + 1), 0.5) for n in range(6)], "max_epochs"),
    ],
)
def test_patience_runs_out_when_neither_loss_nor_score_improves(epochs, stopped):
    assert after(*epochs).stopped(SETTINGS) == stopped


def test_a_state_survives_being_written_down():
    state = after((1.0, 0.5), (0.9, 0.6))
    assert State.from_json(state.as_json()) == state
    lines = state.history_csv().splitlines()
    assert lines[0] == ",".join(COLUMNS) and len(lines) == 3


def test_macro_auroc_is_scikit_learn_s_ties_included():
    generator = np.random.default_rng(0)
    target = generator.integers(0, 2, (60, 4)).astype(np.float32)
    scores = np.round(generator.normal(size=(60, 4)) + target, 1).astype(np.float32)
    assert macro_auroc(scores, target) == pytest.approx(roc_auc_score(target, scores, average="macro"))


def test_a_class_with_one_value_alone_has_no_area():
    scores = np.array([[0.1, 0.3], [0.9, 0.2]], np.float32)
    for label in (0, 1):
        assert macro_auroc(scores, np.array([[0, label], [1, label]])) == 1.0
    assert macro_auroc(scores, np.array([[1, 1], [1, 1]])) == 0.5
