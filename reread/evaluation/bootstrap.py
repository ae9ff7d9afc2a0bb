"""The metrics of an evaluation on resampled test items, for the bootstrap of reread.verdicts.resampling.

Shape legend: m test items, K classes, R resamples.

A resample of items is a vector of counts, so that a metric of all resamples is a matrix product: of the counts with
each item's score (accuracy, loss), with its entries in the confusion matrix (recall, precision, F1), with its distance
in its calibration bin, or a running sum along the sorted scores (AUROC).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from reread.evaluation.metrics import (
    CALIBRATION_BINS,
    TUNED,
    all_metric_names,
    calibration_bin,
    class_scores,
    confidence_and_outcome,
    exact_matches,
    one_hot,
    predicted,
    rank_pairs,
    row_losses,
)
from reread.storage.errors import InputError, nearest
from reread.verdicts.items import Items
from reread.verdicts.resampling import RESAMPLES, Resampled, item_spread_of, mean_of


def classification(
    measure: str, average: str | int, probabilities: np.ndarray, truth: np.ndarray, task: str
) -> Resampled:
    """Return recall, precision or F1 of a resample, as in metrics.split_metrics.

    average: "macro" (mean over the classes that are present in the resample), "micro", or the number of one class.
    """
    guess = one_hot(predicted(probabilities, task), truth.shape[1])
    parts = [array.astype(np.float64) for array in (guess & truth, guess, truth)]

    def resampled(counts: np.ndarray) -> np.ndarray:
        hits, guesses, truths = (counts @ part for part in parts)
        if average == "micro":
            return class_scores(measure, *(one.sum(axis=1) for one in (hits, guesses, truths)))
        scores = class_scores(measure, hits, guesses, truths)
        if isinstance(average, int):
            return scores[:, average]
        present = truths > 0
        return (scores * present).sum(axis=1) / np.maximum(present.sum(axis=1), 1)

    return resampled


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> Resampled:
    """Return the expected calibration error of one label or several."""
    confidence, outcome = confidence_and_outcome(probabilities, labels)
    items = np.repeat(np.arange(len(labels)), len(confidence) // len(labels))
    distance = np.zeros((len(labels), CALIBRATION_BINS))
    np.add.at(distance, (items, calibration_bin(confidence)), outcome - confidence)
    return lambda counts: np.abs(counts @ distance).sum(axis=1) / counts.sum(axis=1) * len(labels) / len(confidence)


# What ``rank_pairs`` returns.
Ranks = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def won_pairs(ranks: Ranks, by_item: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return of each resample how many pairs of a positive and a negative are in order, ties one half, and all pairs.

    by_item: the counts of items, float64 [m, R]. Float64 [R] each; AUROC is their quotient.
    """
    negatives, positives, below, not_above = ranks
    passed = np.zeros((len(negatives) + 1, by_item.shape[1]))  # number of negatives before each rank
    np.cumsum(by_item[negatives], axis=0, out=passed[1:])
    drawn = by_item[positives]
    won = np.einsum("ir,ir->r", drawn, passed[below] + passed[not_above]) / 2
    return won, drawn.sum(axis=0) * passed[-1]


def macro_auroc(probabilities: np.ndarray, truth: np.ndarray) -> Resampled:
    """Return the mean AUROC over the classes that have both outcomes in the resample; ties count one half."""
    classes = [rank_pairs(scores, positive) for scores, positive in zip(probabilities.T, truth.T, strict=True)]

    def resampled(counts: np.ndarray) -> np.ndarray:
        by_item = np.ascontiguousarray(counts.T)  # [m, R]: the counts of one item are contiguous
        total, known = np.zeros(len(counts)), np.zeros(len(counts))
        for ranks in classes:
            won, pairs = won_pairs(ranks, by_item)
            total += np.divide(won, pairs, out=np.zeros_like(won), where=pairs > 0)
            known += pairs > 0
        return np.divide(total, known, out=np.zeros_like(total), where=known > 0)

    return resampled


def resampled_metric(
    metric: str, probabilities: np.ndarray, labels: np.ndarray, task: str, classes: Sequence[str] = ()
) -> Resampled:
    """Return the named metric of one run's probabilities, float32 [m, K], as a function of the counts of its items.

    classes: the names of the classes, for a metric of one of them ("recall:CLASS"). Of a tuned metric, the
    probabilities are the predictions that ``Thresholds.decide`` returns.
    """
    metric = TUNED.get(metric, metric)
    if metric == "accuracy" and task == "single-label":
        return mean_of(predicted(probabilities, task) == labels)
    if metric == "loss":
        return mean_of(row_losses(probabilities, labels))
    if metric == "expected_calibration_error":
        return calibration_error(probabilities, labels)
    truth = one_hot(labels, probabilities.shape[1])
    measure, colon, one = metric.partition(":")
    if colon and one in classes:
        number = list(classes).index(one)
        if measure == "auroc":
            return macro_auroc(probabilities[:, [number]], truth[:, [number]])
        return classification(measure, number, probabilities, truth, task)
    average, _, measure = metric.partition("_")
    if metric == "macro_auroc":
        return macro_auroc(probabilities, truth)
    if metric in all_metric_names(task) and average in ("macro", "micro"):
        return classification(measure, average, probabilities, truth, task)
    matches = exact_matches(probabilities, truth) if metric == "exact_match" else None
    if matches is not None:
        return mean_of(matches)
    others = [name for name in all_metric_names(task) if name != metric]
    raise InputError(f"no bootstrap of '{metric}' on these {task} rows: {nearest(metric, others)}")


def item_spread(
    treatment: Sequence[np.ndarray],
    control: Sequence[np.ndarray],
    labels: np.ndarray,
    task: str,
    metric: str,
    resamples: int = RESAMPLES,
    groups: Sequence[Any] | np.ndarray | None = None,
    classes: Sequence[str] = (),
) -> Items:
    """Return what the choice of items leaves in the difference of the two sides' mean metrics.

    treatment, control: float32 [m, K] of probabilities for each seed, of the same m items; a baseline has one. A
    published figure has none: it does not vary with the items, so all of the other side's own variance over them
    counts. groups: the group of each item, [m] of any comparable type (patient, film, source file); None: each item
    alone. classes: the names of the classes, for a metric of one of them.
    """
    first, second = (
        [resampled_metric(metric, one, labels, task, classes) for one in side] for side in (treatment, control)
    )
    return item_spread_of(first, second, len(labels), resamples, groups)
