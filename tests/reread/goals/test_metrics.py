"""Metrics against values worked out by hand and against scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import confusion_matrix, log_loss, precision_recall_fscore_support, roc_auc_score

from reread.goals import goal, metric_title, metric_value
from reread.goals.classification import calibration_table, row_losses
from reread.goals.multi_label import Thresholds, best_threshold, thresholds_of
from reread.storage.errors import InputError

ROWS = np.array([[0.7, 0.2, 0.1], [0.1, 0.9, 0.0], [0.4, 0.35, 0.25], [0.3, 0.65, 0.05]], np.float32)


def split_metrics(probabilities, labels, task, classes):
    return goal(task).measure({"test": probabilities}, {"test": labels}, classes)["test"]


def test_single_label_by_hand():
    metrics = split_metrics(ROWS, np.array([0, 1, 1, 1]), "single-label", ["a", "b", "c"])
    assert metrics["accuracy"] == 0.75
    # a: precision 1/2, recall 1; b: precision 1, recall 2/3. c has no row and is left out.
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 0.8) / 2)
    assert metrics["absent_classes"] == ["c"]
    assert metrics["loss"] == pytest.approx(-np.log([0.7, 0.9, 0.35, 0.65]).mean(), rel=1e-6)
    assert metrics["confusion"] == [[1, 0, 0], [1, 2, 0], [0, 0, 0]]
    # Each row in a bin of its own: |0.7 - 1|, |0.9 - 1|, |0.4 - 0|, |0.65 - 1|, a quarter each.
    assert metrics["expected_calibration_error"] == pytest.approx((0.3 + 0.1 + 0.4 + 0.35) / 4, rel=1e-6)


def test_calibration_shares_a_bin():
    probabilities = np.array([[0.62, 0.38], [0.64, 0.36], [0.66, 0.34], [0.99, 0.01]], np.float32)
    table = calibration_table(probabilities, np.array([0, 1, 1, 0]))
    shared = table[9]  # (0.6, 0.667]
    assert shared["count"] == 3
    assert shared["confidence"] == pytest.approx(0.64, rel=1e-6)
    assert shared["accuracy"] == pytest.approx(1 / 3)
    error = goal("single-label").metric("expected_calibration_error").value(probabilities, np.array([0, 1, 1, 0]))
    assert error == pytest.approx(3 / 4 * (0.64 - 1 / 3) + 1 / 4 * 0.01, rel=1e-5)
    assert sum(row["count"] for row in table) == 4 and table[0]["confidence"] is None


def test_bins_are_closed_above():
    # 1 belongs to the last bin, and one half of two classes to the eighth, (7/15, 8/15].
    table = calibration_table(np.array([[1.0, 0.0], [0.5, 0.5]], np.float32), np.array([0, 0]))
    assert [number for number, row in enumerate(table) if row["count"]] == [7, 14] and len(table) == 15
    assert (table[7]["low"], table[7]["high"]) == (7 / 15, 8 / 15)
    # 0 belongs to the first bin, and all 15 are listed where the last ones are empty.
    (low, *others) = calibration_table(np.array([[0.0, 0.01]], np.float32), np.array([[0, 0]], np.uint8))
    assert low["count"] == 2 and [row["count"] for row in others] == [0] * 14


def test_loss_agrees_with_scikit_learn():
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(4), 200).astype(np.float32)
    labels = rng.integers(0, 4, 200)
    exact = probabilities.astype(np.float64)
    expected = log_loss(labels, exact / exact.sum(axis=1, keepdims=True), labels=range(4))
    assert row_losses(probabilities, labels).mean() == pytest.approx(expected, rel=1e-5)
    several = rng.integers(0, 2, (200, 4), dtype=np.uint8)
    expected = np.mean([log_loss(truth, predicted) for truth, predicted in zip(several.T, exact.T, strict=True)])
    assert row_losses(probabilities, several).mean() == pytest.approx(expected, rel=1e-5)


def test_a_probability_of_zero_has_a_finite_loss():
    assert np.isfinite(row_losses(np.array([[0.0, 1.0]], np.float32), np.array([0]))).all()
    assert np.isfinite(row_losses(np.array([[0.0, 1.0]], np.float32), np.array([[1, 0]], np.uint8))).all()


def test_rows_of_two_labels_match_where_these_are_the_most_probable():
    labels = np.array([[1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]], np.uint8)
    probabilities = np.array(
        [[0.2, 0.1, 0.05, 0], [0.9, 0.8, 0.7, 0], [0.3, 0, 0.6, 0.6], [0.3, 0.4, 0, 0.3]], np.float32
    )
    assert split_metrics(probabilities, labels, "multi-label", list("abcd"))["exact_match"] == 0.5
    drawn = np.array([[4.0, 0, 0, 0], [0, 2, 1, 1]])
    exact_match = goal("multi-label").metric("exact_match")
    assert exact_match.resampled([probabilities], labels)(drawn).tolist() == [[1], [0.25]]
    with pytest.raises(InputError, match="exact_match is not defined"):
        exact_match.resampled([probabilities], np.eye(4, dtype=np.uint8) | labels)


def test_a_class_without_a_guess_has_no_precision_and_one_with_every_row_no_auroc():
    labels, probabilities = np.array([[1, 1], [0, 1]], np.uint8), np.array([[0.2, 0.9], [0.1, 0.8]], np.float32)
    metrics = split_metrics(probabilities, labels, "multi-label", ["a", "b"])
    assert metrics["precision"] == {"a": 0.0, "b": 1.0} and metrics["auroc"] == {"a": 1.0, "b": None}
    assert metrics["macro_auroc"] == 1.0


def test_a_split_without_a_label_has_no_f1():
    labels, probabilities = np.zeros((3, 2), np.uint8), np.full((3, 2), 0.6, np.float32)
    splits = ({"validation": probabilities}, {"validation": labels})
    metrics = goal("multi-label").measure(*splits, ["a", "b"])["validation"]
    names = ("macro_auroc", "micro_f1", "macro_f1", "tuned_micro_f1", "tuned_macro_f1")
    assert [metrics[name] for name in names] == [None] * 5


def test_several_labels():
    rng = np.random.default_rng(1)
    labels = (rng.random((300, 4)) < 0.3).astype(np.uint8)
    labels[:, 3] = 0
    probabilities = np.clip(0.3 * labels + 0.7 * rng.random((300, 4)), 0, 1).astype(np.float32)
    metrics = split_metrics(probabilities, labels, "multi-label", ["a", "b", "c", "never"])
    assert "accuracy" not in metrics
    assert metrics["auroc"]["b"] == pytest.approx(roc_auc_score(labels[:, 1], probabilities[:, 1]))
    assert metrics["auroc"]["never"] is None and metrics["absent_classes"] == ["never"]
    assert metrics["macro_auroc"] == pytest.approx(np.mean([metrics["auroc"][name] for name in "abc"]))
    assert metrics["exact_match"] is None
    assert sum(metrics["confusion"]["a"].values()) == 300
    assert metrics["confusion"]["a"]["true_positive"] == int((labels[:, 0] & (probabilities[:, 0] >= 0.5)).sum())


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_recall_precision_and_f1_agree_with_scikit_learn(task):
    rng = np.random.default_rng(2)
    probabilities, names = rng.dirichlet(np.ones(4), 200).astype(np.float32), ["a", "b", "c", "never"]
    labels = rng.integers(0, 3, 200) if task == "single-label" else (rng.random((200, 4)) < 0.3).astype(np.uint8)
    if task == "multi-label":
        labels[:, 3] = 0
    metrics = split_metrics(probabilities, labels, task, names)
    guess = probabilities.argmax(1) if task == "single-label" else probabilities >= 0.5
    expected = precision_recall_fscore_support(labels, guess, labels=range(3), zero_division=0)
    for measure, values in zip(("precision", "recall", "f1"), expected, strict=False):
        assert [metrics[measure][name] for name in "abc"] == pytest.approx(values)
        assert metrics[f"macro_{measure}"] == pytest.approx(values.mean())
        assert metrics[measure]["never"] is None
    if task == "single-label":
        assert metrics["confusion"] == confusion_matrix(labels, guess, labels=range(len(names))).tolist()
    if task == "multi-label":
        micro = precision_recall_fscore_support(labels, guess, average="micro", zero_division=0)[2]
        assert metrics["micro_f1"] == pytest.approx(micro)
    assert set(goal(task).names) <= set(metrics)
    assert metric_value(metrics, "recall:b") == metrics["recall"]["b"]
    assert {metric_title(name) for name in goal(task).comparison_metrics(names)} >= {"Macro F1", "AUROC of never"}


@pytest.mark.parametrize(
    ("probabilities", "labels", "fault"),
    [
        (np.zeros((0, 2), np.float32), np.zeros(0, int), "no rows"),
        (np.full((2, 2), np.nan, np.float32), np.array([0, 1]), "not finite"),
        (np.full((2, 3), 0.3, np.float32), np.array([0, 1]), "shape"),
    ],
)
def test_what_cannot_be_measured_is_refused(probabilities, labels, fault):
    with pytest.raises(InputError, match=fault):
        split_metrics(probabilities, labels, "single-label", ["a", "b"])


def test_a_threshold_has_the_best_f1_of_all():
    """Against every threshold between two scores; equal scores are predicted together."""
    generator = np.random.default_rng(0)
    for _ in range(30):
        scores = generator.random(40).round(1)
        positive = generator.random(40) < 0.3
        best = best_threshold(scores, positive)

        def f1(threshold, scores=scores, positive=positive):
            guess = scores >= threshold
            return 2 * (guess & positive).sum() / max(guess.sum() + positive.sum(), 1)

        assert f1(best) == pytest.approx(max(f1(candidate) for candidate in (0, *np.arange(0.05, 1.1, 0.1))))
    assert best_threshold(np.array([0.2, 0.4]), np.array([False, False])) == 0.5


def test_f1_at_the_thresholds_of_validation():
    """Probabilities are far below 0.5, so that F1 there is 0. A class that no row has gets the overall threshold."""
    labels = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]], np.uint8)
    probabilities = (0.02 + 0.1 * labels).astype(np.float32)
    splits = {"validation": (probabilities, labels), "test": (probabilities[:3], labels[:3])}
    measured = goal("multi-label").measure(
        {split: predicted for split, (predicted, _) in splits.items()},
        {split: truth for split, (_, truth) in splits.items()},
        ["a", "b", "c"],
    )
    test = measured["test"]
    assert (test["micro_f1"], test["macro_f1"]) == (0.0, 0.0)
    assert (test["tuned_micro_f1"], test["tuned_macro_f1"]) == (1.0, 1.0)
    assert test["tuned_f1"] == {"a": 1.0, "b": 1.0, "c": None}
    assert test["thresholds"] == measured["validation"]["thresholds"]
    assert test["thresholds"]["by_class"]["c"] == test["thresholds"]["overall"] == pytest.approx(0.07)
    kept = thresholds_of(test)
    assert np.array_equal(kept.decide("tuned_macro_f1", probabilities), labels.astype(np.float32))
    two = Thresholds(0.5, np.array([0.1, 0.9]))
    assert two.decide("tuned_micro_f1", np.float32([[0.5, 0.6]])).tolist() == [[1, 1]]
    assert two.decide("tuned_macro_f1", np.float32([[0.5, 0.6]])).tolist() == [[1, 0]]
    alone = split_metrics(probabilities, labels, "multi-label", ["a", "b", "c"])
    assert alone["tuned_micro_f1"] is None and thresholds_of(alone) is None
