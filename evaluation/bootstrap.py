"""A bootstrap over seeds and test items together: would the difference be there on other seeds and other items?

Shape legend: n seeds, m test items, K classes, R resamples.

Seeds (rows) and items (columns) are drawn with replacement, each by itself, as in Owen 2007, "The pigeonhole
bootstrap" (Annals of Applied Statistics 1), which shows that the interval so made is too wide rather than too narrow
when both are drawn from a larger population: on invented networks of 6 and 8 seeds and 300 items, the 95 % interval
held the true difference in 97 % and 100 % of 200 draws. Both variants of a pair meet the same seeds and items.

A resample of items is a vector of counts, so that a metric of all resamples is a matrix product: of the counts
with each item's score (accuracy, loss), with its entries in the confusion matrix (macro F1), with its distance
in its calibration bin, or a running sum along the sorted scores (AUROC).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from evaluation.metrics import (
    CALIBRATION_BINS,
    HIGHER_IS_BETTER,
    calibration_bin,
    confidence_and_outcome,
    one_hot,
    predicted,
    row_losses,
)
from evaluation.statistics import CONFIDENCE, Interval
from storage.errors import InputError, nearest

RESAMPLES = 10_000
# AUROC needs a running sum for each class and seed: 2,000 items of 14 classes and 8 seeds take 4 s, 25,000 two minutes.
RESAMPLES_OF_AUROC = 2_000
# Blocks of this size stay in the cache: ten times as much takes twice as long.
CELLS_AT_ONCE = 500_000

# Metric of R resamples, float64 [R], from their counts of items, float64 [R, m].
Resampled = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TwoWay:
    """The interval over seeds and items, and what the choice of items does to it.

    item_deviation: the standard error that items leave in the mean of any number of seeds; residual_deviation: what
    they add to a single seed's difference, and what more seeds average away.
    """

    interval: Interval
    item_deviation: float
    residual_deviation: float
    resamples: int


def mean_of(scores: np.ndarray) -> Resampled:
    """A metric that is the mean of one score an item, float [m]."""
    return lambda counts: counts @ scores.astype(np.float64) / counts.sum(axis=1)


def macro_f1(probabilities: np.ndarray, truth: np.ndarray, task: str) -> Resampled:
    """Macro F1 over the classes that are present in the resample, as in metrics.split_metrics."""
    guess = predicted(probabilities, task)
    guess = one_hot(guess, truth.shape[1]) if guess.ndim == 1 else guess
    hits, guesses, truths = ((array.astype(np.float64)) for array in (guess & truth, guess, truth))

    def resampled(counts: np.ndarray) -> np.ndarray:
        present = counts @ truths
        both = counts @ guesses + present
        f1 = np.divide(2 * (counts @ hits), both, out=np.zeros_like(both), where=both > 0)
        return (f1 * (present > 0)).sum(axis=1) / np.maximum((present > 0).sum(axis=1), 1)

    return resampled


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> Resampled:
    """Expected calibration error of one label or several."""
    confidence, outcome = confidence_and_outcome(probabilities, labels)
    items = np.repeat(np.arange(len(labels)), len(confidence) // len(labels))
    distance = np.zeros((len(labels), CALIBRATION_BINS))
    np.add.at(distance, (items, calibration_bin(confidence)), outcome - confidence)
    return lambda counts: np.abs(counts @ distance).sum(axis=1) / counts.sum(axis=1) * len(labels) / len(confidence)


def macro_auroc(probabilities: np.ndarray, truth: np.ndarray) -> Resampled:
    """Mean AUROC over the classes that have both outcomes in the resample; ties count one half."""
    classes = []
    for scores, positive in zip(probabilities.T, truth.T, strict=True):
        order = np.argsort(scores, kind="stable")
        negatives, positives = order[~positive[order]], order[positive[order]]
        below = np.searchsorted(scores[negatives], scores[positives], side="left")
        not_above = np.searchsorted(scores[negatives], scores[positives], side="right")
        classes.append((negatives, positives, below, not_above))

    def resampled(counts: np.ndarray) -> np.ndarray:
        by_item = np.ascontiguousarray(counts.T)  # [m, R]: one item's counts lie together
        total, known = np.zeros(len(counts)), np.zeros(len(counts))
        for negatives, positives, below, not_above in classes:
            passed = np.zeros((len(negatives) + 1, len(counts)))  # negatives up to each place in their order
            np.cumsum(by_item[negatives], axis=0, out=passed[1:])
            drawn = by_item[positives]
            won = np.einsum("ir,ir->r", drawn, passed[below] + passed[not_above]) / 2
            pairs = drawn.sum(axis=0) * passed[-1]
            total += np.divide(won, pairs, out=np.zeros_like(won), where=pairs > 0)
            known += pairs > 0
        return np.divide(total, known, out=np.zeros_like(total), where=known > 0)

    return resampled


def resampled_metric(metric: str, probabilities: np.ndarray, labels: np.ndarray, task: str) -> Resampled:
    """The named metric of one run's probabilities, float32 [m, K], as a function of the counts of its items."""
    if metric == "accuracy" and task == "single-label":
        return mean_of(predicted(probabilities, task) == labels)
    if metric == "loss":
        return mean_of(row_losses(probabilities, labels))
    if metric == "expected_calibration_error":
        return calibration_error(probabilities, labels)
    truth = one_hot(labels, probabilities.shape[1])
    if metric == "macro_f1":
        return macro_f1(probabilities, truth, task)
    if metric == "macro_auroc":
        return macro_auroc(probabilities, truth)
    raise InputError(f"no bootstrap of '{metric}' on a {task} data set: {nearest(metric, HIGHER_IS_BETTER)}")


def item_counts(resamples: int, items: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Counts of each item in each resample, float64 [some, m] at a time, ``resamples`` in all."""
    step = max(1, min(resamples, CELLS_AT_ONCE // items))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, items, size=(rows, items)) + np.arange(rows)[:, None] * items
        yield np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items).astype(np.float64)


def two_way(
    better: list[np.ndarray],
    worse: list[np.ndarray],
    labels: np.ndarray,
    task: str,
    metric: str,
    confidence: float = CONFIDENCE,
    resamples: int | None = None,
) -> TwoWay:
    """Interval of the mean difference ``better`` - ``worse`` over seeds and items, by percentiles.

    better, worse: one float32 [m, K] of probabilities a seed, in the same order of seeds, of the same m items.
    Where less is better (loss) the difference is turned round, so that positive always speaks for ``better``.
    """
    if len(better) != len(worse) or not better:
        raise InputError(f"a bootstrap of pairs needs as many seeds on both sides, not {len(better)} and {len(worse)}")
    resamples = resamples or (RESAMPLES_OF_AUROC if metric == "macro_auroc" else RESAMPLES)
    pairs = [
        (resampled_metric(metric, first, labels, task), resampled_metric(metric, second, labels, task))
        for first, second in zip(better, worse, strict=True)
    ]
    return two_way_of(pairs, len(labels), HIGHER_IS_BETTER.get(metric, True), confidence, resamples)


def two_way_of(
    pairs: list[tuple[Resampled, Resampled]],
    items: int,
    higher_is_better: bool = True,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> TwoWay:
    """As ``two_way``, of metrics that are given as functions of the counts of ``items`` items: a pair a seed."""
    sign = 1.0 if higher_is_better else -1.0
    rng = np.random.default_rng(0)
    blocks = [
        np.stack([sign * (first(counts) - second(counts)) for first, second in pairs], axis=1)
        for counts in item_counts(resamples, items, rng)
    ]
    by_seed = np.concatenate(blocks)  # [R, n]: each seed's difference on each resample of items
    n = len(pairs)
    drawn = rng.integers(0, n, size=(resamples, n))
    means = np.take_along_axis(by_seed, drawn, axis=1).mean(axis=1)
    tail = 100 * (1 - confidence) / 2
    low, high = np.percentile(means, [tail, 100 - tail])
    ones = np.ones((1, items))
    observed = float(np.mean([sign * (first(ones) - second(ones))[0] for first, second in pairs]))
    interval = Interval(observed, float(low), float(high), n, f"bootstrap over {n} seeds and {items} items")
    return TwoWay(interval, *item_deviations(by_seed), resamples)


def item_deviations(by_seed: np.ndarray) -> tuple[float, float]:
    """item_deviation and residual_deviation from each seed's difference on the same resamples of items, [R, n].

    What two seeds share there is the items' doing: the mean covariance between different seeds is the variance of
    the first, and what a seed's own variance has beyond it, of the second (neither below 0).
    """
    covariance = np.atleast_2d(np.cov(by_seed, rowvar=False))
    n = len(covariance)
    own = float(np.trace(covariance)) / n
    shared = max(0.0, (float(covariance.sum()) - own * n) / (n * (n - 1))) if n > 1 else own
    return math.sqrt(shared), math.sqrt(max(0.0, own - shared))
