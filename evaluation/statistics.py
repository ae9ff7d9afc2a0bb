"""What a few seeds say: intervals, paired differences, an exact test, Holm's correction, and seeds needed.

Sources: Student 1908 (t interval); Efron 1987, "Better Bootstrap Confidence Intervals" (BCa, by scipy);
Fisher 1935, "The Design of Experiments", section 21 (sign-flip test); Holm 1979, "A Simple Sequentially
Rejective Multiple Test Procedure".
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from storage.errors import InputError

CONFIDENCE = 0.95
RESAMPLES = 10_000
LARGEST_EXACT = 20
FLIPS = 100_000  # drawn where the patterns are too many to count: a p of 0.05 then has a standard error of 0.0007
MOST_SEEDS = 10_000
# Differences of metrics that are nearer than this are equal: what is left is the rounding of float64.
EQUAL = 1e-12


@dataclass(frozen=True)
class Interval:
    """A mean with its interval. ``method`` says how it came about; low and high are None where n is 1."""

    mean: float
    low: float | None
    high: float | None
    n: int
    method: str

    @property
    def half_width(self) -> float | None:
        return None if self.low is None else (self.high - self.low) / 2

    def above(self, bound: float) -> bool:
        """Whether all of it lies above ``bound``: one that begins there does not, whatever the last bits say."""
        return self.low is not None and self.low > bound + EQUAL

    def below(self, bound: float) -> bool:
        return self.high is not None and self.high < bound - EQUAL

    def inside(self, bound: float) -> bool:
        """Whether all of it lies in (-bound, +bound)."""
        return self.above(-bound) and self.below(bound)


def finite(values: Sequence[float]) -> np.ndarray:
    """The values as float64 [n]; InputError when there are none or one is not finite."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not len(array) or not np.isfinite(array).all():
        raise InputError(f"{array.tolist()} is not a list of finite numbers: nothing can be said of it")
    return array


def are_equal(values: np.ndarray) -> bool:
    return float(np.ptp(values)) <= EQUAL


def mean_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean over seeds and its t interval; one value has a mean alone, equal values have the point."""
    array = finite(values)
    mean, n = float(array.mean()), len(array)
    if n == 1:
        return Interval(mean, None, None, n, "one value: no interval")
    if are_equal(array):
        return Interval(mean, mean, mean, n, "all values are equal: the point")
    half = float(stats.t.ppf((1 + confidence) / 2, n - 1) * array.std(ddof=1) / math.sqrt(n))
    return Interval(mean, mean - half, mean + half, n, "t interval")


def paired_interval(differences: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Mean of the paired differences and its BCa bootstrap interval, 10,000 resamples from a fixed generator.

    On normal differences the 95 % interval held the mean in 87 % (6 seeds), 88 % (8) and 91 % (12) of 400 draws: it is
    too narrow for so few, which is why no verdict rests on it alone. Equal differences give the point. Where BCa is
    not defined (the acceleration of a degenerate sample), the percentile interval is given and said.
    """
    array = finite(differences)
    mean, n = float(array.mean()), len(array)
    if n == 1:
        return Interval(mean, None, None, n, "one difference: no interval")
    if are_equal(array):
        return Interval(mean, mean, mean, n, "all differences are equal: the point")
    for method in ("BCa", "percentile"):
        with warnings.catch_warnings():
            # scipy warns where BCa is degenerate and returns NaN, which is looked at below.
            warnings.simplefilter("ignore")
            found = stats.bootstrap(
                (array,),
                np.mean,
                axis=-1,
                n_resamples=RESAMPLES,
                confidence_level=confidence,
                method=method,
                rng=np.random.default_rng(0),
            ).confidence_interval
        if np.isfinite(found.low) and np.isfinite(found.high):
            said = "BCa bootstrap" if method == "BCa" else "percentile bootstrap (BCa is not defined here)"
            return Interval(mean, float(found.low), float(found.high), n, said)
    raise InputError(f"no bootstrap interval for {array.tolist()}")


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p of the sign-flip test: the share of the 2^n sign patterns whose mean is as far from 0.

    Under the null hypothesis each difference is as likely to be negative as positive. Exact up to 20 seeds: the least
    p that n seeds can give is 2^(1-n). Of more seeds 100,000 patterns are drawn from a fixed generator, and the one
    that was seen is counted with them (Phipson and Smyth 2010, "Permutation P-values Should Never Be Zero").
    """
    array = finite(differences)
    if len(array) > LARGEST_EXACT:
        generator = np.random.default_rng(0)
        drawn = sum(difference * generator.choice((-1.0, 1.0), FLIPS) for difference in array)
        sums = np.append(drawn, array.sum())
    else:
        sums = np.zeros(1)
        for difference in array:
            sums = np.concatenate([sums + difference, sums - difference])
    tolerance = EQUAL * max(1.0, float(np.abs(array).sum()))
    return float((np.abs(sums) >= abs(array.sum()) - tolerance).mean())


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p of each value, in the order given: reject where it is under alpha."""
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def least_seeds(alpha: float, pairs: int = 1) -> int:
    """The least seeds with which a pair can pass whatever the others do: pairs 2^(1-n) < alpha."""
    n = 1
    while pairs * 2.0 ** (1 - n) >= alpha:
        n += 1
    return n


@dataclass(frozen=True)
class SeedsNeeded:
    """How many seeds would give an interval no wider than the smallest effect on either side, or None, and why."""

    seeds: int | None
    sentence: str


def seeds_needed(
    differences: Sequence[float],
    smallest_effect: float,
    alpha: float = 0.05,
    item_deviation: float = 0.0,
    residual_deviation: float = 0.0,
    test_alpha: float | None = None,
) -> SeedsNeeded:
    """The seeds with which both intervals of a pair would reach at most ``smallest_effect`` to either side.

    With s the standard deviation of the differences between seeds, the interval over n seeds reaches t s / sqrt(n)
    and the bootstrap over seeds and items z sqrt((s^2 + 2 residual^2) / n + item^2), where ``item_deviation`` is what
    the choice of test items leaves in any number of seeds and ``residual_deviation`` what it adds to a single seed
    (evaluation.bootstrap measures both; the residual counts twice more because both draws carry it). ``test_alpha`` is
    what a correction over several pairs leaves of alpha to the test over seeds, all of it where it is not given.
    """
    array = finite(differences)
    if len(array) < 2:
        return SeedsNeeded(None, "One difference has no spread: run at least two seeds to learn how many are needed.")
    normal = float(stats.norm.ppf(1 - alpha / 2))
    if normal * item_deviation > smallest_effect:
        wider = (normal * item_deviation / smallest_effect) ** 2
        return SeedsNeeded(
            None,
            f"The choice of test items alone gives ±{normal * item_deviation:.4f}, more than ±{smallest_effect:.4g}: "
            f"more seeds cannot settle it, {wider:.1f} times the test items could.",
        )
    spread = float(array.std(ddof=1))
    for n in range(2, MOST_SEEDS + 1):
        over_seeds = stats.t.ppf(1 - (test_alpha or alpha) / 2, n - 1) * spread / math.sqrt(n)
        both = normal * math.sqrt((spread**2 + 2 * residual_deviation**2) / n + item_deviation**2)
        if max(over_seeds, both) <= smallest_effect:
            return SeedsNeeded(
                n, f"With this spread, {n} seeds would give intervals of ±{smallest_effect:.4g} or narrower."
            )
    return SeedsNeeded(None, f"With this spread, more than {MOST_SEEDS:,} seeds would be needed.")
