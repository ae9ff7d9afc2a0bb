"""The second analysis of a comparison: would the difference be there on other seeds and other test items?

Shape legend: n, m seeds of the two sides, R resamples of the test items.

Seeds and items are two crossed random factors, as readers and cases are in studies of diagnosis (Obuchowski and
Rockette 1995, "Hypothesis testing of diagnostic accuracy for multiple readers and multiple tests"). The variance of the
difference is S1^2 / n + S2^2 / m + I^2. S1 and S2 are the standard deviations between the seeds of each side, which
contain what items add to a single seed. I is the standard error that the choice of items leaves in the means of any
number of seeds; it comes from a bootstrap of items that all seeds share, as the covariance between seeds (Owen 2007,
"The pigeonhole bootstrap", Annals of Applied Statistics 1). The interval is Student's, with the degrees of freedom of
Satterthwaite 1946 (Welch 1947, Biometrika 34, for two variances; Hillis 2007 for readers and cases).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from verdicts.statistics import EQUAL

MOST_FREEDOM = 1e9


@dataclass(frozen=True)
class Items:
    """What the choice of test items leaves: its standard error, and how many items or groups of items are drawn.

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


def of_seeds(values: np.ndarray) -> Variance:
    """Return the variance of the mean of ``values`` [n], one per seed; 0 of one seed."""
    n = len(values)
    return (float(values.var(ddof=1)) / n if n > 1 else 0.0), n - 1


class Student:
    """Student's test of a difference with the variance between seeds of each side and that of items.

    Its methods are those of verdicts.permutation.Permutation. parts: ``of_seeds`` of each side that has seeds.
    """

    def __init__(self, mean: float, parts: Sequence[Variance], items: Items) -> None:
        self.mean = mean
        self.standard_error, self.freedom = crossed_error(parts, items.deviation, items.units)
        # One seed has no spread: no test of it knows its error.
        self.testable = min(degrees for _, degrees in parts) > 0

    def one_sided_p(self, bound: float = 0.0) -> tuple[float, float]:
        """Return the p of "the difference exceeds ``bound``" and of "the difference is below ``bound``"."""
        distance = self.mean - bound
        if not self.testable:
            return 1.0, 1.0
        if self.standard_error <= EQUAL:
            return float(distance <= EQUAL), float(distance >= -EQUAL)
        below = float(scipy.special.stdtr(self.freedom, distance / self.standard_error))
        return 1 - below, below

    def ends(self, level: float, bounds: Sequence[float] = ()) -> tuple[float, float] | None:
        """Return the interval's ends; None of one seed."""
        if not self.testable:
            return None
        half = float(scipy.special.stdtrit(self.freedom, 1 - level / 2)) * self.standard_error
        return self.mean - half, self.mean + half


def crossed_error(parts: Sequence[Variance], item: float, units: int) -> tuple[float, float]:
    """Return the standard error of the difference of the means of ``parts``, and its degrees of freedom.

    item: the standard error that the choice of items leaves; units: how many items or groups are drawn. Of two parts
    Welch's degrees of freedom are lowered by one, to no less than the smaller part has. With spreads of 1 to 3 Welch's
    own test rejects in up to 1.4 times its level, at the levels that Holm's procedure leaves (docs/verdicts.md).
    """
    over_seeds, freedom = sum(variance for variance, _ in parts), _satterthwaite(parts)
    if len(parts) > 1:
        freedom = max(freedom - 1, min(degrees for _, degrees in parts))
    return math.sqrt(over_seeds + item**2), _satterthwaite([(over_seeds, freedom), (item**2, units - 1)])


def _satterthwaite(variances: Sequence[Variance]) -> float:
    """Return the degrees of freedom of a sum of variances, each with its own."""
    whole = sum(variance for variance, _ in variances)
    if whole <= 0:
        return MOST_FREEDOM
    return min(MOST_FREEDOM, whole**2 / max(sum(one**2 / max(degrees, 1) for one, degrees in variances), 1e-300))


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
