"""Statistics of a few seeds: intervals, paired differences, an exact test, and Holm's correction.

Sources: Student 1908 (t interval); Fisher 1935, "The Design of Experiments", section 21 (sign-flip test);
Hartigan 1969, "Using Subsample Values as Typical Values", Journal of the American Statistical Association 64 (the
interval that inverts it); Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy

from storage.errors import InputError

CONFIDENCE = 0.95
LARGEST_EXACT = 20
FLIPS = 100_000  # drawn where there are too many patterns: a p of 0.05 then has a standard error of 0.0007
# Differences of metrics that are nearer than this are equal: what is left is the rounding of float64.
EQUAL = 1e-12


@dataclass(frozen=True)
class Interval:
    """A mean with its interval. ``method`` names how it was computed; low and high are None where n is 1."""

    mean: float
    low: float | None
    high: float | None
    n: int
    method: str

    def above(self, bound: float) -> bool:
        """Return whether the whole interval exceeds ``bound``; an end that equals it up to rounding does not."""
        return self.low is not None and self.low > bound + EQUAL

    def below(self, bound: float) -> bool:
        return self.high is not None and self.high < bound - EQUAL


def finite(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the values as float64 [n]; InputError when there are none or one is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise InputError(f"{array.tolist()} is not a list of finite numbers: no statistic can be computed")
    return array


def are_equal(values: np.ndarray) -> bool:
    return float(np.ptp(values)) <= EQUAL


def mean_interval(
    values: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE, bounds: tuple[float, float] | None = None
) -> Interval:
    """Return the mean over seeds and its t interval; one value has no interval, equal values have a point.

    bounds: the least and the largest value that there can be; the interval ends there, and covers as often as before.
    """
    array = finite(values)
    mean, n = float(array.mean()), len(array)
    if n == 1:
        return Interval(mean, None, None, n, "one value: no interval")
    if are_equal(array):
        return Interval(mean, mean, mean, n, "all values are equal: a point")
    half = float(scipy.stats.t.ppf((1 + confidence) / 2, n - 1) * array.std(ddof=1) / math.sqrt(n))
    low, high = mean - half, mean + half
    if bounds is not None:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return Interval(mean, low, high, n, "t interval")


def paired_interval(differences: Sequence[float] | np.ndarray, confidence: float = CONFIDENCE) -> Interval:
    """Return the mean of the paired differences and the interval that inverts the sign-flip test.

    The interval holds every mean that the two-sided test does not reject, so it excludes 0 exactly where
    ``sign_flip_p`` is below 1 - confidence. Its ends are order statistics of the means of all subsets of the
    differences (Hartigan 1969); for differences with a symmetric distribution its coverage is exact, and at least
    ``confidence``. Where so few differences reject nothing (fewer than 6 at 95 %) the t interval is returned.
    """
    array = finite(differences)
    n = len(array)
    if n == 1 or are_equal(array):
        return mean_interval(array, confidence)
    means = subset_means(array)
    outside = math.ceil((1 - confidence) * (len(means) + 1) / 2 - EQUAL) - 1
    if outside < 1:
        return mean_interval(array, confidence)
    ends = np.partition(means, [outside - 1, len(means) - outside])
    low, high = float(ends[outside - 1]), float(ends[len(means) - outside])
    return Interval(float(array.mean()), low, high, n, "inverted sign-flip test")


def subset_means(array: np.ndarray) -> np.ndarray:
    """Return the means of all 2^n - 1 non-empty subsets of float64 [n]; of 100,000 random ones for more than 20 values.

    A subset is the set of differences whose sign a pattern flips. Its mean is at most b exactly where the flipped
    sum of the differences from b is at least the observed one, so these means decide the test for every bound.
    """
    if len(array) > LARGEST_EXACT:
        kept = np.random.default_rng(0).random((FLIPS, len(array))) < 0.5
        return kept @ array / np.maximum(kept.sum(axis=1), 1)
    sums, counts = np.zeros(1), np.zeros(1)
    for difference in array:
        sums = np.concatenate([sums, sums + difference])
        counts = np.concatenate([counts, counts + 1])
    return sums[1:] / counts[1:]


def one_sided_p(differences: Sequence[float], bound: float = 0.0) -> tuple[float, float]:
    """Return the sign-flip p of "the mean exceeds ``bound``" and of "the mean is below ``bound``".

    The smallest p of n seeds is 2^-n. The observed pattern counts among the patterns (Phipson and Smyth 2010,
    "Permutation P-values Should Never Be Zero").
    """
    array = finite(differences)
    means = subset_means(array)
    tolerance = EQUAL * max(1.0, float(np.abs(array).max()))
    patterns = len(means) + 1
    above = (1 + np.count_nonzero(means <= bound + tolerance)) / patterns
    below = (1 + np.count_nonzero(means >= bound - tolerance)) / patterns
    return float(above), float(below)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Return the two-sided p of the sign-flip test: the share of sign patterns whose mean is as far from 0.

    Under the null hypothesis each difference is as likely to be negative as positive. Exact up to 20 seeds; the
    smallest p of n seeds is 2^(1-n). For more seeds 100,000 patterns come from a fixed generator.
    """
    return min(1.0, 2 * min(one_sided_p(differences)))


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """Return the p of two one-sided sign-flip tests that the mean is inside (-margin, +margin)."""
    return max(one_sided_p(differences, -margin)[0], one_sided_p(differences, margin)[1])


def holm(p_values: Sequence[float]) -> list[float]:
    """Return Holm's adjusted p of each value, in the order given: reject where it is below alpha."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted
