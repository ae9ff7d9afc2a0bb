"""The second analysis of a comparison: would the difference be there on other seeds and other test items?

Shape legend: n seeds, m test items, G groups of items, K classes, R resamples.

Seeds and items are two crossed random factors, as readers and cases are in studies of diagnosis (Obuchowski and
Rockette 1995, "Hypothesis testing of diagnostic accuracy for multiple readers and multiple tests"). The variance of
the mean difference is S^2 / n + I^2. S is the standard deviation of the differences between seeds, which contains what
items add to a single seed. I is the standard error that the choice of items leaves in the mean of any number of seeds;
it comes from a bootstrap of items that all seeds share, as the mean covariance between seeds (Owen 2007, "The
pigeonhole bootstrap", Annals of Applied Statistics 1). The interval is Student's, with the degrees of freedom of
Satterthwaite 1946 (Hillis 2007 for readers and cases). docs/verdicts.md has its coverage by simulation.

Items that share a group (a patient, a film, a source file) are drawn together, as a cluster bootstrap.

A resample of items is a vector of counts, so that a metric of all resamples is a matrix product: of the counts
with each item's score (accuracy, loss), with its entries in the confusion matrix (recall, precision, F1), with its
distance in its calibration bin, or a running sum along the sorted scores (AUROC).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from evaluation.metrics import (
    CALIBRATION_BINS,
    TUNED,
    all_metric_names,
    calibration_bin,
    class_scores,
    confidence_and_outcome,
    exact_matches,
    higher_is_better,
    one_hot,
    predicted,
    rank_pairs,
    row_losses,
)
from evaluation.statistics import CONFIDENCE, EQUAL, Interval
from storage.errors import InputError, nearest

# The relative standard error of a variance from R resamples is sqrt(2 / R): 3 % here.
RESAMPLES = 2_000
# Blocks of this size stay in the cache: ten times as much takes twice as long.
CELLS_AT_ONCE = 500_000

# Metric of R resamples, float64 [R], from their counts of items, float64 [R, m].
Resampled = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class TwoWay:
    """The mean difference over seeds and items, with its interval and what it is made of.

    standard_error: of the mean; freedom: its degrees of freedom. item_deviation: the standard error that items leave in
    the mean of any number of seeds; residual_deviation: what they add to a single seed's difference, and what more
    seeds average away.
    """

    interval: Interval
    standard_error: float
    freedom: float
    item_deviation: float
    residual_deviation: float
    resamples: int

    def one_sided_p(self, bound: float = 0.0) -> tuple[float, float]:
        """Return the p of "the mean exceeds ``bound``" and of "the mean is below ``bound``"."""
        distance = self.interval.mean - bound
        if self.standard_error <= EQUAL:
            return float(distance <= EQUAL), float(distance >= -EQUAL)
        below = float(scipy.stats.t.cdf(distance / self.standard_error, self.freedom))
        return 1 - below, below

    def p(self) -> float:
        """Return the two-sided p of no difference."""
        return min(1.0, 2 * min(self.one_sided_p()))

    def equivalence_p(self, margin: float) -> float:
        """Return the p of two one-sided tests that the mean is inside (-margin, +margin)."""
        return max(self.one_sided_p(-margin)[0], self.one_sided_p(margin)[1])


def mean_of(scores: np.ndarray) -> Resampled:
    """Return the metric that is the mean of one score per item, float [m]."""
    return lambda counts: counts @ scores.astype(np.float64) / counts.sum(axis=1)


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


def item_counts(
    resamples: int, items: int, rng: np.random.Generator, groups: np.ndarray | None = None
) -> Iterator[np.ndarray]:
    """Yield the counts of each item in each resample, float64 [some, m] at a time, ``resamples`` in all.

    groups: the number of each item's group, int [m] from 0; the items of a group have the same count.
    """
    units = items if groups is None else int(groups.max()) + 1
    step = max(1, min(resamples, CELLS_AT_ONCE // max(items, units)))
    for start in range(0, resamples, step):
        rows = min(step, resamples - start)
        drawn = rng.integers(0, units, size=(rows, units)) + np.arange(rows)[:, None] * units
        counts = np.bincount(drawn.ravel(), minlength=rows * units).reshape(rows, units).astype(np.float64)
        yield counts if groups is None else counts[:, groups]


def two_way(
    treatment: list[np.ndarray],
    control: list[np.ndarray],
    labels: np.ndarray,
    task: str,
    metric: str,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    groups: Sequence | np.ndarray | None = None,
    classes: Sequence[str] = (),
    reference: float | None = None,
) -> TwoWay:
    """Return the mean difference ``treatment`` - ``control`` over seeds and items, with its interval.

    treatment, control: float32 [m, K] of probabilities for each seed, seeds in the same order, of the same m items.
    A metric that is better when lower (loss) has its difference negated, so that positive always favours ``treatment``.
    groups: the group of each item, [m] of any comparable type (patient, film, source file); None: each item alone.
    classes: the names of the classes, for a metric of one of them. reference: a figure in place of ``control``, which
    is then empty; it does not vary with the items, so all of the treatment's own variance over them counts.
    """
    if reference is not None and not control:
        metrics = [resampled_metric(metric, one, labels, task, classes) for one in treatment]
        fixed = [(one, lambda counts: np.full(len(counts), reference)) for one in metrics]
        return two_way_of(fixed, len(labels), higher_is_better(metric), confidence, resamples, groups)
    if len(treatment) != len(control) or not treatment:
        raise InputError(
            f"a paired analysis needs as many seeds on both sides, not {len(treatment)} and {len(control)}"
        )
    pairs = [
        (
            resampled_metric(metric, first, labels, task, classes),
            resampled_metric(metric, second, labels, task, classes),
        )
        for first, second in zip(treatment, control, strict=True)
    ]
    return two_way_of(pairs, len(labels), higher_is_better(metric), confidence, resamples, groups)


def two_way_of(
    pairs: list[tuple[Resampled, Resampled]],
    items: int,
    higher_is_better: bool = True,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
    groups: Sequence | np.ndarray | None = None,
) -> TwoWay:
    """Return ``two_way`` of metrics given as functions of the counts of ``items`` items: one pair per seed."""
    sign = 1.0 if higher_is_better else -1.0
    numbers = group_numbers(groups, items)
    units = items if numbers is None else int(numbers.max()) + 1
    blocks = [
        np.stack([sign * (first(counts) - second(counts)) for first, second in pairs], axis=1)
        for counts in item_counts(resamples, items, np.random.default_rng(0), numbers)
    ]
    by_seed = np.concatenate(blocks)  # [R, n]: each seed's difference on each resample of items
    item, residual = item_deviations(by_seed)
    ones = np.ones((1, items))
    differences = np.array([sign * (first(ones) - second(ones))[0] for first, second in pairs])
    n = len(pairs)
    error, freedom = crossed_error(differences, item, units)
    mean, half = float(differences.mean()), float(scipy.stats.t.ppf((1 + confidence) / 2, freedom)) * error
    drawn = f"{items} items" if numbers is None else f"{units} groups of {items} items"
    method = f"t interval over {n} seed{'s' if n > 1 else ''} and {drawn}"
    return TwoWay(Interval(mean, mean - half, mean + half, n, method), error, freedom, item, residual, resamples)


def crossed_error(values: np.ndarray, item: float, units: int) -> tuple[float, float]:
    """Return the standard error of the mean of ``values`` [n], one per seed, and its degrees of freedom.

    item: the standard error that the choice of items leaves; units: how many items or groups are drawn.
    """
    n = len(values)
    of_seeds = float(values.var(ddof=1)) / n if n > 1 else 0.0
    variance = of_seeds + item**2
    parts = [(of_seeds, n - 1), (item**2, units - 1)]
    freedom = math.inf
    if variance > 0:
        freedom = variance**2 / max(sum(part**2 / max(degrees, 1) for part, degrees in parts), 1e-300)
    return math.sqrt(variance), freedom


def group_numbers(groups: Sequence | np.ndarray | None, items: int) -> np.ndarray | None:
    """Return the number of each item's group, int [m] from 0; InputError where not every item has one."""
    if groups is None:
        return None
    names = np.asarray(groups)
    if names.shape != (items,):
        raise InputError(f"groups have shape {names.shape}: give one group for each of the {items} items")
    numbers = np.unique(names, return_inverse=True)[1]
    if numbers.max() == 0:
        raise InputError("all items are in one group: at least two groups are needed to draw from")
    return numbers


def item_deviations(by_seed: np.ndarray) -> tuple[float, float]:
    """Return item_deviation and residual_deviation from each seed's difference on the same resamples, [R, n].

    Two seeds covary only through their items, so the mean covariance between seeds is the variance of the first; what
    a seed's own variance exceeds it by is the variance of the second (neither below 0).
    """
    covariance = np.atleast_2d(np.cov(by_seed, rowvar=False))
    n = len(covariance)
    own = float(np.trace(covariance)) / n
    shared = max(0.0, (float(covariance.sum()) - own * n) / (n * (n - 1))) if n > 1 else own
    return math.sqrt(shared), math.sqrt(max(0.0, own - shared))
