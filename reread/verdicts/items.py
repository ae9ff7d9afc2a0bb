"""The second analysis of a comparison: would the difference be there on other seeds and other test items?

Shape legend: n, m seeds of the two sides, R resamples of the test items.

Seeds and items are two crossed random factors, as readers and cases are in studies of diagnosis (Obuchowski and
Rockette 1995, "Hypothesis testing of diagnostic accuracy for multiple readers and multiple tests"). The variance of the
difference is S1^2 / n + S2^2 / m + I^2. S1 and S2 are the standard deviations between the seeds of each side, which
contain what items add to a single seed. I is the standard error that the choice of items leaves in the means of any
number of seeds; it comes from a bootstrap of items that all seeds share, as the covariance between seeds (Owen 2007,
"The pigeonhole bootstrap", Annals of Applied Statistics 1).

The error of the difference is the sum of two independent ones: Student's t of the seeds, by Welch's degrees of freedom
less one (Welch 1947, Biometrika 34), and Student's t of the items. The tails of such a sum are those of Behrens and
Fisher (Fisher 1935, "The fiducial argument in statistical inference", Annals of Eugenics 6), who keep the level where a
test with Satterthwaite's degrees of freedom for the whole does not: where the few seeds happen to lie near each other,
the items make these degrees many. docs/verdicts.md compares both.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from reread.verdicts.statistics import EQUAL

# Nodes of the trapezoidal rule in standard deviations, for the logarithm of a variance that is known up to chi squared.
NODES = np.arange(-52, 10, 0.5)
NEGLIGIBLE = 1e-12
# Student's t of so many degrees of freedom is normal, to 1e-6.
MANY = 10**6


@dataclass(frozen=True)
class Items:
    """The choice of test items: its standard error, and how many items or groups of items are drawn.

    count: of the items; units: of what is drawn, equal to ``count`` where each item is drawn alone.
    """

    deviation: float = 0.0
    units: int = 0
    count: int = 0
    resamples: int = 0

    def words(self) -> str:
        return f"{self.count} items" if self.units == self.count else f"{self.units} groups of {self.count} items"


# Of a mean, with its degrees of freedom.
Variance = tuple[float, float]


def of_seeds(values: np.ndarray, test_to_train: float = 0.0) -> Variance:
    """Return the variance of the mean of ``values`` [n], one per seed; 0 of one seed.

    test_to_train: of cross-validation, the rows that a seed tests over those that one of its networks trains on. Scores
    that share training rows are no independent draws, and the variance of their mean is S^2 (1 / n + test / train)
    (Nadeau and Bengio 2003, "Inference for the generalization error", Machine Learning 52). Theirs is of single runs:
    of n seeds of K folds T^2 (1 / nK + t / train), with t rows of test of a run. A seed is the mean of K runs, so that
    T^2 is K S^2, and K t are all rows that a seed tests. 0 adds nothing.
    """
    n = len(values)
    return (float(values.var(ddof=1)) * (1 / n + test_to_train) if n > 1 else 0.0), n - 1


class Student:
    """Student's test of a difference with the variance between seeds of each side and that of items.

    Its methods are those of reread.verdicts.permutation.Permutation. parts: ``of_seeds`` of each side that has seeds.
    """

    def __init__(self, mean: float, parts: Sequence[Variance], items: Items) -> None:
        self.mean = mean
        # One seed has no spread: no test of it knows its error.
        self.testable = min(degrees for _, degrees in parts) > 0
        self.errors = errors_of(parts, items)

    def one_sided_p(self, bound: float = 0.0) -> tuple[float, float]:
        """Return the p of "the difference exceeds ``bound``" and of "the difference is below ``bound``"."""
        distance = self.mean - bound
        if not self.testable:
            return 1.0, 1.0
        if not self.errors:
            return float(distance <= EQUAL), float(distance >= -EQUAL)
        p = tail(self.errors, abs(distance))
        return (p, 1 - p) if distance > 0 else (1 - p, p)

    def ends(self, level: float, bounds: Sequence[float] = ()) -> tuple[float, float] | None:
        """Return the interval's ends; None of one seed."""
        if not self.testable:
            return None
        half = quantile(self.errors, level / 2)
        return self.mean - half, self.mean + half


def errors_of(parts: Sequence[Variance], items: Items) -> list[Variance]:
    """Return the independent errors of a difference that are not 0: that of the seeds, and that of the items.

    parts: ``of_seeds`` of each side that has seeds.
    """
    both = of_difference(parts), (items.deviation**2, max(items.units - 1, 1))
    return [error for error in both if error[0] > EQUAL**2]


def tail(errors: Sequence[Variance], distance: float) -> float:
    """Return how likely the sum of ``errors_of`` exceeds ``distance``, at least 0; each is Student's t."""
    if not errors:
        return 0.0
    if len(errors) == 1:
        ((variance, freedom),) = errors
        return float(scipy.special.stdtr(freedom, -distance / math.sqrt(variance)))
    (first, of_first), (second, of_second) = errors
    factors, weights = of_student(of_first)
    others, their_weights = of_student(of_second)
    spread = np.sqrt(first * factors[:, None] + second * others)
    return float(weights @ scipy.special.ndtr(-distance / spread) @ their_weights)


def quantile(errors: Sequence[Variance], level: float) -> float:
    """Return the distance that the sum of ``errors_of`` exceeds with probability ``level``, below 0.5."""
    if not errors:
        return 0.0
    each = [
        -float(scipy.special.stdtrit(freedom, level / len(errors))) * math.sqrt(variance)
        for variance, freedom in errors
    ]
    if len(errors) == 1:
        return each[0]
    return float(scipy.optimize.brentq(lambda distance: tail(errors, distance) - level, 0.0, sum(each), rtol=1e-12))


@functools.lru_cache(maxsize=1024)
def of_student(freedom: float) -> tuple[np.ndarray, np.ndarray]:
    """Return factors of the variance and their weights, float64 [Q]: normal errors, so mixed, are Student's t.

    The factor is freedom / chi squared. Its logarithm has a smooth density, so a tail is exact to 1e-9.
    """
    if freedom >= MANY:
        return np.ones(1), np.ones(1)
    logarithms = math.sqrt(2 / freedom) * NODES
    weights = np.exp(freedom / 2 * (logarithms - np.expm1(logarithms)))
    used = weights > NEGLIGIBLE
    return np.exp(-logarithms[used]), weights[used] / weights.sum()


def of_difference(parts: Sequence[Variance]) -> Variance:
    """Return the variance of the difference of the means of ``parts``, and its degrees of freedom.

    Of two parts they are Welch's, lowered by one, to no less than the smaller part has: with spreads of 1 to 3 Welch's
    own test rejects more often than its level, at the levels that Holm's procedure leaves (docs/verdicts.md).
    """
    variance, least = sum(part for part, _ in parts), min(degrees for _, degrees in parts)
    if len(parts) == 1 or variance <= 0:
        return variance, least
    return variance, max(variance**2 / sum(part**2 / max(degrees, 1) for part, degrees in parts) - 1, least)


def item_deviation(treatment: np.ndarray, control: np.ndarray | None = None) -> float:
    """Return the standard error that items leave in the difference, from each seed's metric on the same resamples.

    treatment [R, n], control [R, m], or None for a figure that does not vary with the items. Two seeds covary only
    through their items, so the mean covariance between seeds is the variance. Seeds at the same place of sides of equal
    size may share more than items, as those of pairs do, and are left out. A single seed's own variance counts whole.
    """
    n = treatment.shape[1]
    both = treatment if control is None else np.concatenate([treatment, control], axis=1)
    covariance = np.atleast_2d(np.cov(both, rowvar=False))
    variance = _between(covariance[:n, :n], n > 1)
    if control is not None:
        m = control.shape[1]
        variance += _between(covariance[n:, n:], m > 1) - 2 * _between(covariance[:n, n:], n == m > 1)
    return math.sqrt(max(0.0, variance))


def _between(covariance: np.ndarray, without_diagonal: bool) -> float:
    """Return the mean of a matrix, without its diagonal where the pairs of a seed with itself do not count."""
    if not without_diagonal:
        return float(covariance.mean())
    n = len(covariance)
    return (float(covariance.sum()) - float(np.trace(covariance))) / (n * (n - 1))
