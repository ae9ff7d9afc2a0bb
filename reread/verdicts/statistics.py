"""Statistics of a few seeds: intervals, an exact test of paired differences, robust estimates, and Holm's levels.

Sources: Student 1908 (t interval); Fisher 1935, "The Design of Experiments", section 21 (sign-flip test);
Hartigan 1969, "Using Subsample Values as Typical Values", Journal of the American Statistical Association 64 (the
interval that inverts it); Holm 1979, "A Simple Sequentially Rejective Multiple Test Procedure".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from reread.storage.arrays import BoolArray, Float64Array
from reread.storage.errors import InputError

CONFIDENCE = 0.95
DIGITS = 10
SKEW_LEVEL = 0.01
LARGEST_EXACT = 20
FLIPS = 100_000  # drawn where there are too many patterns: a p of 0.05 then has a standard error of 0.0007
# Differences of metrics that are nearer than this are equal: what is left is the rounding of float64.
EQUAL = 1e-12
# Of published scores, which are rounded to ten decimals.
NEAR = 1e-9


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


def finite(values: Sequence[float] | np.ndarray) -> Float64Array:
    """Return the values as float64 [n]; InputError when there are none or one is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise InputError(f"{array.tolist()} is not a list of finite numbers: no statistic can be computed")
    return array


def rounded(value: Any) -> Any:
    """Return the value with floats rounded to ten decimals: the last bits depend on the order of a sum."""
    if isinstance(value, Mapping):
        return {str(key): rounded(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(inner) for inner in value]
    if isinstance(value, float):
        return round(value, DIGITS)
    return value


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
    if len(array) == 1 or are_equal(array):
        return mean_interval(array, confidence)
    test = SignFlip(array)
    ends = test.ends(1 - confidence)
    if ends is None:
        return mean_interval(array, confidence)
    return Interval(test.mean, *ends, len(array), "inverted sign-flip test")


def subset_means(array: Float64Array, flips: int = FLIPS) -> Float64Array:
    """Return the means of all 2^n - 1 non-empty subsets of float64 [n]; of ``flips`` random ones beyond 20 values.

    A subset is the set of differences whose sign a pattern flips. Its mean is at most b exactly where the flipped
    sum of the differences from b is at least the observed one, so these means decide the test for every bound.
    """
    if len(array) > LARGEST_EXACT:
        kept = np.random.default_rng(0).random((flips, len(array))) < 0.5
        means: Float64Array = kept @ array / np.maximum(kept.sum(axis=1), 1)
        return means
    sums, counts = np.zeros(1), np.zeros(1)
    for difference in array:
        sums = np.concatenate([sums, sums + difference])
        counts = np.concatenate([counts, counts + 1])
    return sums[1:] / counts[1:]


class SignFlip:
    """The sign-flip test of one sample of differences: of pairs, or of seeds from one figure.

    Its methods are those of reread.verdicts.permutation.Permutation. flips: of ``subset_means``; fewer make a coarser
    test.
    """

    def __init__(self, differences: Sequence[float] | np.ndarray, flips: int = FLIPS) -> None:
        self.differences = finite(differences)
        self.mean = float(self.differences.mean())
        self.means = np.sort(subset_means(self.differences, flips))
        self.ways = len(self.means) + 1
        self.near = NEAR * max(1.0, float(np.abs(self.differences).max()))

    def one_sided_p(self, bound: float = 0.0) -> tuple[float, float]:
        """Return the p of "the mean exceeds ``bound``" and of "the mean is below ``bound``"."""
        above = 1 + int(np.searchsorted(self.means, bound + self.near, side="right"))
        below = 1 + len(self.means) - int(np.searchsorted(self.means, bound - self.near, side="left"))
        return above / self.ways, below / self.ways

    def ends(self, level: float, bounds: Sequence[float] = ()) -> tuple[float, float] | None:
        """Return the interval's ends; None where so few differences reject nothing at ``level``."""
        outside = math.ceil(level * self.ways / 2 - EQUAL) - 1
        if outside < 1:
            return None
        return float(self.means[outside - 1]), float(self.means[len(self.means) - outside])


def sign_flip_p(differences: Sequence[float] | np.ndarray) -> float:
    """Return the two-sided p of the sign-flip test: the share of sign patterns whose mean is as far from 0.

    Under the null hypothesis each difference is as likely to be negative as positive. Exact up to 20 seeds; the
    smallest p of n seeds is 2^(1-n), since the observed pattern counts (Phipson and Smyth 2010). For more seeds 100,000
    patterns come from a fixed generator.
    """
    return min(1.0, 2 * min(SignFlip(differences).one_sided_p()))


def levels(p_values: Sequence[float], alpha: float) -> list[float]:
    """Return the level at which Holm's procedure tests each hypothesis: alpha / (those that are not rejected before).

    In the order of their p values, the first that is not rejected ends the procedure, and the others have its level.
    """
    adjusted, left, ended = [0.0] * len(p_values), len(p_values), False
    for index in sorted(range(len(p_values)), key=lambda index: p_values[index]):
        adjusted[index] = alpha / left
        ended = ended or p_values[index] >= adjusted[index]
        left -= not ended
    return adjusted


def shift(treatment: np.ndarray, control: np.ndarray | None = None) -> float:
    """Return the robust estimate of a difference (Hodges and Lehmann 1963, "Estimates of Location Based on Ranks").

    Of two samples the median of all differences between them; of one the median of the means of its pairs.
    """
    if control is not None:
        return float(np.median(treatment[:, None] - control))
    first, second = np.triu_indices(len(treatment))
    return float(np.median((treatment[first] + treatment[second]) / 2))


def outlying(values: Float64Array, floor: float) -> BoolArray:
    """Return which values are far from their median, bool [n]: by a modified z score above 3.5 and more than ``floor``.

    The score is 0.6745 |x - median| / MAD, and the limit is that of Iglewicz and Hoaglin 1993, "How to Detect and
    Handle Outliers", section 3.
    """
    away = np.abs(values - np.median(values))
    far: BoolArray = (0.6745 * away > 3.5 * np.median(away)) & (away > floor)
    return far


def is_skewed(values: np.ndarray) -> bool:
    """Return whether a sample is skewed by the test of D'Agostino 1970 at 1 %; it needs 8 values."""
    if len(values) < 8 or are_equal(values):
        return False
    return bool(scipy.stats.skewtest(values).pvalue < SKEW_LEVEL)
