"""The studentised permutation test of two samples, and the interval that inverts it.

Shape legend: n, m seeds of the two sides; P ways to split all N = n + m values into n and m.

The statistic is Welch's: the difference of the means over its standard error with a variance for each side. Where both
sides have the same distribution but for their mean, the test is exact; studentised, it keeps its level as n and m grow
where the sides' spreads and shapes differ as well (Janssen 1997, "Studentized permutation tests for non-i.i.d.
hypotheses", Statistics and Probability Letters 36; Chung and Romano 2013, "Exact and asymptotically robust permutation
tests", Annals of Statistics 41, theorem 2.2). All splits are enumerated up to LARGEST_EXACT of them (10 and 10 seeds);
beyond, DRAWS come from a fixed generator, and the observed one counts among them (Phipson and Smyth 2010, "Permutation
P-values Should Never Be Zero").
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from reread.storage.arrays import Float64Array
from reread.verdicts.statistics import EQUAL, finite

LARGEST_EXACT = 200_000
DRAWS = 50_000  # a p of 0.002 has a relative standard error of 10 % then
# Statistics that are nearer than this are equal: published scores are rounded to ten decimals.
TIE = 1e-6
BISECTIONS = 40


@functools.lru_cache(maxsize=16)
def splits(n: int, m: int, most: int = LARGEST_EXACT, draws: int = DRAWS) -> tuple[np.ndarray, bool]:
    """Return which values are the first side's in each split, float64 [P, N] of 0 and 1, the observed split first.

    And whether each split stands for its mirror image as well: of two sides of n seeds, half of the splits suffice.
    """
    size, ways = n + m, math.comb(n + m, n)
    if ways <= most:
        mirrored = n == m
        chosen = itertools.combinations(range(1, size), n - 1) if mirrored else itertools.combinations(range(size), n)
        first = [(0, *places) for places in chosen] if mirrored else list(chosen)
        signs = np.zeros((len(first), size))
        np.put_along_axis(signs, np.array(first), 1.0, axis=1)
        return signs, mirrored
    order = np.random.default_rng(0).random((draws, size)).argsort(axis=1)
    signs = (order < n).astype(np.float64)
    signs[0] = np.arange(size) < n
    return signs, False


class Permutation:
    """The test of one comparison: p of any bound of the difference in means, and the bounds that are not rejected.

    most, draws: of ``splits``; fewer make a coarser test that is as valid. bisections: halvings of an end's bracket.
    """

    def __init__(
        self,
        treatment: Sequence[float] | np.ndarray,
        control: Sequence[float] | np.ndarray,
        most: int = LARGEST_EXACT,
        draws: int = DRAWS,
        bisections: int = BISECTIONS,
    ) -> None:
        first, second = finite(treatment), finite(control)
        self.n, self.m, self.bisections = len(first), len(second), bisections
        self.mean = float(first.mean() - second.mean())
        self.testable = min(self.n, self.m) > 1
        if not self.testable:
            return
        values = np.concatenate([first - first.mean(), second - second.mean()])
        values[np.abs(values) <= EQUAL] = 0.0
        of_first = np.arange(self.n + self.m) < self.n
        assigned, self.mirrored = splits(self.n, self.m, most, draws)
        # Of each split the sums over its first side: of the values, their squares, those that are the treatment's, and
        # how many of them are. A shift of the treatment changes all statistics through these alone.
        sums, squares, moved, count = (assigned @ np.stack([values, values**2, values * of_first, of_first], axis=1)).T
        self.square = float((values**2).sum())
        rest = self.n - count
        # By powers of the sides' distance: the difference of each split's means, and the square of its error.
        self.difference = sums / self.n + sums / self.m, count / self.n - rest / self.m
        of_treatment = _squared_error(sums, count, (squares, 2 * moved, count), self.n)
        of_control = _squared_error(-sums, rest, (self.square - squares, -2 * moved, rest), self.m)
        self.error = [treatment + control for treatment, control in zip(of_treatment, of_control, strict=True)]
        self.spread = math.sqrt(self.square / max(self.n + self.m - 2, 1)) or 1e-12
        self.ways = len(assigned) * (2 if self.mirrored else 1)

    def one_sided_p(self, bound: float = 0.0) -> tuple[float, float]:
        """Return the p of "the difference exceeds ``bound``" and of "the difference is below ``bound``"."""
        if not self.testable:
            return 1.0, 1.0
        distance = self.mean - bound
        values = self.statistics(distance if abs(distance) > EQUAL else 0.0)
        observed = values[0]
        near = TIE * max(1.0, abs(observed))
        above, below = np.count_nonzero(values >= observed - near), np.count_nonzero(values <= observed + near)
        if self.mirrored:
            above += np.count_nonzero(values <= near - observed)
            below += np.count_nonzero(values >= -near - observed)
        return above / self.ways, below / self.ways

    def statistics(self, distance: float) -> Float64Array:
        """Return Welch's statistic of every split, float64 [P], where the sides' means are ``distance`` apart."""
        constant, linear, square = self.error
        error: Float64Array = constant + distance * (linear + distance * square)
        # Sides without any spread differ by as many errors as one likes.
        np.maximum(error, 1e-18 * (distance**2 + self.square) + 1e-30, out=error)
        statistics: Float64Array = (self.difference[0] + distance * self.difference[1]) / np.sqrt(error)
        return statistics

    def ends(self, level: float, bounds: Sequence[float] = ()) -> tuple[float, float] | None:
        """Return the least and the largest difference that neither one-sided test rejects at ``level`` / 2.

        None where so few seeds reject nothing. bounds: differences that a verdict tests: an end lies on the side of
        each that its own p says, also where the p is not monotone.
        """
        if not self.testable or 1 / self.ways >= level / 2:
            return None
        return self._end(level / 2, 0, bounds), self._end(level / 2, 1, bounds)

    def _end(self, level: float, side: int, bounds: Sequence[float]) -> float:
        """side: 0 for the lower end, 1 for the upper one. The mean itself is never rejected."""
        sign = -1 if side == 0 else 1
        outside, inside = None, self.mean
        for bound in sorted((end for end in bounds if sign * (end - self.mean) > 0), key=lambda end: sign * end):
            if self.one_sided_p(bound)[side] < level:
                outside = bound
                break
            inside = bound
        step = self.spread
        while outside is None:
            beyond = inside + sign * step
            if self.one_sided_p(beyond)[side] < level:
                outside = beyond
            elif step > 1e9 * self.spread:
                return sign * math.inf
            else:
                inside, step = beyond, 2 * step
        for _ in range(self.bisections):
            middle = (inside + outside) / 2
            if self.one_sided_p(middle)[side] < level:
                outside = middle
            else:
                inside = middle
        return outside


def _squared_error(
    sums: Float64Array, shifted: Float64Array, squares: Sequence[Float64Array], size: int
) -> Iterator[Float64Array]:
    """Yield the squared error of a side's mean by powers of the distance.

    Its values add up to ``sums`` + distance * ``shifted``; squares: what their squares add up to, by powers too.
    """
    for square, of_sum in zip(squares, (sums**2, 2 * sums * shifted, shifted**2), strict=True):
        yield (square - of_sum / size) / ((size - 1) * size)
