"""Symbols by position: their metrics, what is kept of predictions, and an experiment that is judged by recall."""

import json
from pathlib import Path

import numpy as np
import pytest

from reread.evaluation.items import Items, recompute
from reread.goals import goal, metric_words
from reread.goals.symbols import SYMBOLS
from reread.preprocessing.ingest import absent_classes, data_card
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import open_prepared
from tests.reread.kinds.few_symbols import ALPHABET, OUTPUTS, POSITIONS, make_project
from tests.reread.studies.pipeline import run_pipeline

GOAL = goal("symbols")
EXPERIMENT = {
    "title": "Does a GRU recall more than a plain network?",
    "defaults": {
        "model": "symbol_recall",
        "data": "few",
        "network": {"hidden_size": 8},
        "training": {"max_epochs": 10, "patience": 10, "batch_size": 8, "learning_rate": 0.03},
    },
    "variants": {"gru": {}, "untrained": {"training": {"learning_rate": 0.00001}}},
    "grid": {"preprocessing": {"lag": [1, 2]}},
    "seeds": [0, 1, 2, 3],
    "comparisons": [
        {"claim": "Training helps.", "treatment": "gru/lag=1", "control": "untrained/lag=1", "metric": "recall"}
    ],
    "equivalence_margin": 0.05,
    "alpha": 0.05,
    "evaluate_on": "test",
}


def probabilities(symbols: np.ndarray, alphabet: int) -> np.ndarray:
    """Return probabilities of which the highest of each position is that of its symbol."""
    drawn = np.random.default_rng(0).random((*symbols.shape, alphabet))
    drawn[(*np.indices(symbols.shape), symbols)] += 1
    return (drawn / drawn.sum(axis=2, keepdims=True)).reshape(len(symbols), -1).astype(np.float32)


def test_recall_counts_positions_and_exact_match_rows():
    target = np.array([[0, 1], [2, 2], [1, 0], [0, 0]], np.uint8)
    predicted = np.array([[0, 1], [2, 0], [0, 1], [0, 2]], np.uint8)
    prediction = probabilities(predicted, ALPHABET)
    measured = GOAL.measure({"test": prediction}, {"test": target}, OUTPUTS)["test"]
    assert measured == {"rows": 4, "recall": 4 / 8, "exact_match": 1 / 4}
    recall = GOAL.metric("recall")
    assert recall.statistics(prediction, target).tolist() == [[1.0], [0.5], [0.0], [0.5]]
    drawn = recall.resampled([prediction], target)(np.array([[4.0, 0, 0, 0], [0, 1, 2, 1]]))
    assert drawn.tolist() == [[1.0], [0.25]]
    assert metric_words("recall") == "symbol recall" and metric_words("exact_match") == "exact match"


def test_of_equal_probabilities_the_first_symbol_is_predicted():
    target = np.array([[0, 1]], np.uint8)
    assert GOAL.metric("recall").value(np.full((1, 6), 1 / 3, np.float32), target) == 0.5


def test_the_stored_symbols_decide_both_metrics():
    rng = np.random.default_rng(0)
    target = rng.integers(8, size=(50, 4), dtype=np.uint8)
    prediction = probabilities(rng.integers(8, size=(50, 4)), 8)
    for metric in GOAL.metrics:
        array = GOAL.stored_as(metric.name)
        stored = GOAL.encode(array, prediction, target)
        assert array == SYMBOLS and stored.dtype == np.uint8 and stored.shape == (50, 4)
        decoded = GOAL.decode(array, stored, target, 32)
        assert decoded.dtype == np.float32 and decoded.shape == prediction.shape
        assert np.array_equal(metric.statistics(decoded, target), metric.statistics(prediction, target))
    assert GOAL.stored_unjudged() == SYMBOLS
    scores = GOAL.encode("scores", prediction, target)
    assert np.array_equal(GOAL.decode("scores", scores, target, 32), prediction)


def test_an_answer_names_the_symbol_of_each_position():
    row = np.array([0.1, 0.7, 0.2, 0.25, 0.25, 0.5], np.float32)
    assert OUTPUTS == ("1:0", "1:1", "1:2", "2:0", "2:1", "2:2")
    assert GOAL.described(row, OUTPUTS) == [("1:1", pytest.approx(0.7)), ("2:2", 0.5)]
    assert GOAL.columns(row[None], OUTPUTS) == {"symbol": [["1:1", "2:2"]], "probability": [[pytest.approx(0.7), 0.5]]}
    targets = GOAL.targets([[1, 2], [0, 0]], len(OUTPUTS))
    assert targets.dtype == np.uint8 and GOAL.target_values(targets, OUTPUTS) == [["1:1", "2:2"], ["1:0", "2:0"]]
    assert GOAL.description(targets) == {"positions": 2}


@pytest.mark.parametrize("labels", [[], [-1, 0], [256], [0.5], ["1"], [True]])
def test_what_is_no_symbol_is_named(labels):
    assert "whole numbers from 0 to 255" in GOAL.fault(labels) and GOAL.fault([0, 255]) == ""


def test_rows_have_as_many_positions_and_a_kind_that_writes_them():
    with pytest.raises(InputError, match="a row has 1 symbols and another 2"):
        GOAL.targets([[1, 2], [0]], 6)
    with pytest.raises(InputError, match="text and images have no symbols by position"):
        GOAL.targets([[0] * 6], 6)
    with pytest.raises(InputError, match="predictions have shape"):
        GOAL.measure({"test": np.ones((1, 5), np.float32)}, {"test": np.zeros((1, 2), np.uint8)}, OUTPUTS)


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    return make_project(tmp_path_factory.mktemp("project"), EXPERIMENT, (160, 40, 60), 2)


def test_the_card_counts_rows_of_each_output(project):
    entry = Manifest.load(project / "data.manifest.json").entry("few")
    data = open_data_set("few", project / "data", project / "data.manifest.json")
    assert entry.task == "symbols" and absent_classes(data) == []
    assert "| 2:2 | 160 | 40 | 60 |" in data_card(data)


def test_an_experiment_is_judged_by_recall(project):
    plan = run_pipeline(project, "few")
    assert {variant.training["objective"]["name"] for variant in plan.variants.values()} == {"positions"}
    report = project / "reports/few"
    metrics = read_json(report / "metrics.json")
    trained = metrics["variants"]["gru/lag=1"]
    assert trained["score"] == "recall" and set(trained["test"]) == {"recall", "exact_match"}
    assert trained["test"]["recall"]["mean"] > 0.9 and trained["test"]["exact_match"]["mean"] < 1
    (judged,) = json.loads((report / "verdicts.json").read_text())["verdicts"]
    assert (judged["metric"], judged["verdict"]) == ("recall", "supported")
    assert "symbol recall" in (report / "report.html").read_text()

    items = Items(report)
    assert items.data_set("few").task == "symbols" and set(items.kinds.values()) == {SYMBOLS}
    recomputed = recompute(report, plan.comparisons[0])
    published = [seed["test"]["recall"] for seed in trained["seeds"].values()]
    assert recomputed.treatment.scores == pytest.approx(published, abs=1e-9)
    prepared = open_prepared(plan.environment.prepared / plan.variants["gru/lag=1"].prepared_key)
    assert prepared.labels.shape == (260, POSITIONS) and prepared.description["positions"] == POSITIONS
