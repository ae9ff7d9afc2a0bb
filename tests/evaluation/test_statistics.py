"""Statistics against hand-computed values, scipy, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from evaluation.power import seeds_needed
from evaluation.seeds import least_seeds
from evaluation.simulation import coverage_over_seeds
from evaluation.statistics import (
    equivalence_p,
    holm,
    mean_interval,
    one_sided_p,
    paired_interval,
    sign_flip_p,
)
from storage.errors import InputError


def test_mean_interval_is_the_t_interval():
    values = [0.81, 0.83, 0.80, 0.86]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high))


def test_one_value_has_no_interval_and_equal_values_the_point():
    one = paired_interval([0.5])
    assert mean_interval([0.5]).low is None and one.low is None and not one.above(0) and not one.below(1)
    # 0.9 - 0.8 and 0.7 - 0.6 differ in the last bits, which must not make a spread.
    for function in (mean_interval, paired_interval):
        found = function([0.9 - 0.8, 0.7 - 0.6, 0.1])
        assert found.low == found.high == found.mean and "equal" in found.method


def test_sign_flip_by_hand():
    # Of the 8 patterns of signs of (1, 2, 4), |sum| is 7 in two: p = 2/8. Of (1, 2, -4), |-1| or more in all.
    assert sign_flip_p([1, 2, 4]) == 0.25
    assert sign_flip_p([1, 2, -4]) == 1.0
    assert sign_flip_p([0.1] * 6) == 2 / 64
    assert sign_flip_p([0.0] * 8) == 1.0
    # A mean of 0 that rounding makes unequal to 0, at any scale: of 7 means three are below, three above.
    for scale in (1, 1e6 / 3):
        assert one_sided_p(np.array([0.1, 0.2, -0.3]) * scale) == (5 / 8, 5 / 8)


def test_sign_flip_agrees_with_scipy():
    differences = np.random.default_rng(3).normal(0.4, 1, 9)
    expected = stats.permutation_test(
        (differences, np.zeros(9)), lambda a, b: np.mean(a - b), permutation_type="samples", n_resamples=np.inf
    ).pvalue
    assert sign_flip_p(differences) == pytest.approx(expected)


def test_of_many_seeds_patterns_are_drawn():
    differences = np.random.default_rng(3).normal(0.4, 1, 21)
    # Exact over 20 of them; the last is too small to change it by much.
    exact = sign_flip_p(differences[:20])
    assert sign_flip_p([*differences[:20], 1e-9]) == pytest.approx(exact, abs=0.005)
    assert sign_flip_p([0.1] * 20) == 2 / 2**20
    assert sign_flip_p([0.1] * 21) == 2 / 100_001
    assert sign_flip_p(differences) == sign_flip_p(differences)
    found, expected = paired_interval(differences), mean_interval(differences)
    assert found.method == "inverted sign-flip test"
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=0.05)


def test_sign_flip_keeps_its_level():
    rng = np.random.default_rng(0)
    rejected = np.mean([sign_flip_p(rng.normal(0, 1, 8)) < 0.05 for _ in range(1500)])
    assert 0.03 < rejected <= 0.06


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04 times 4, 3, 2, 1: 0.04, 0.06, then never below what came before.
    assert holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_least_seeds():
    assert least_seeds(0.05) == 6
    # Its p must be below alpha: of 6 seeds it is 2 / 64.
    assert (least_seeds(2 / 64), least_seeds(2 / 63)) == (7, 6)
    # Three pairs: 3 / 64 is under 0.05, 3 / 32 is not.
    assert [least_seeds(0.05, pairs) for pairs in (2, 3, 4, 10)] == [7, 7, 8, 9]


@pytest.mark.parametrize("alpha", [0.05, 1 / 16])
def test_the_interval_inverts_the_test(alpha):
    """0 is excluded exactly where p is below alpha, for differences of counts too, whose means tie, and a p of 1/16."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        differences = np.round(rng.normal(0.8, 1, rng.integers(6, 11)) * rng.integers(1, 6)) / 611
        found = paired_interval(differences, 1 - alpha)
        assert (found.above(0) or found.below(0)) == (sign_flip_p(differences) < alpha)


def test_six_seeds_have_their_range_and_five_no_exact_interval():
    # Of the 64 patterns one on each side is outside: the subset means below all others and above all others.
    found = paired_interval([3, 1, 2, 6, 5, 4])
    assert (found.low, found.high) == (1, 6) and "sign-flip" in found.method
    assert paired_interval([3, 1, 2, 6, 5]).method == "t interval"


@pytest.mark.parametrize("seeds", [6, 8, 10, 12])
@pytest.mark.parametrize("differences", ["normal", "skewed", "counts of 611"])
def test_the_interval_over_seeds_covers_what_it_says(differences, seeds):
    """The printed 95 % interval holds the true mean in at least 94 % of the draws."""
    assert 0.94 <= coverage_over_seeds(differences, seeds, 3000) <= 0.985


def test_equivalence_by_two_one_sided_tests():
    # All six are below .3, and all above -.3: 1/64 on either side. At .25 one subset mean is not below.
    differences = [0.1, 0.2, 0.25, -0.1, 0.0, 0.05]
    assert equivalence_p(differences, 0.3) == 1 / 64
    assert equivalence_p(differences, 0.25) == 2 / 64
    assert one_sided_p(differences, -0.3)[0] == 1 / 64 and one_sided_p(differences, 0.3)[0] == 1


def test_equivalence_keeps_its_level_at_the_margin():
    rng = np.random.default_rng(5)
    passed = np.mean([equivalence_p(rng.normal(0.02, 0.01, 8), 0.02) < 0.05 for _ in range(1500)])
    assert 0.03 < passed <= 0.06


@pytest.mark.parametrize("differences", [[0, 0, 0, 0, 0, 0, 1e-3], [0, 1], [1e-9, -1e-9, 0], [0.1, 0.1, 0.1, -0.1]])
def test_degenerate_differences_have_finite_intervals(differences):
    found = paired_interval(differences)
    assert math.isfinite(found.low) and math.isfinite(found.high)
    assert found.low <= found.mean <= found.high


def test_seeds_needed_reach_the_verdict():
    """A mean of .02 is told from 0 by the first n whose two-sided t quantile times the error is below it."""
    needed, sentence = seeds_needed(0.02, 0.03, 0.0, 0.01, (0.05, 0.2), (6, 5), 6)

    def reach(n, items=0.0):
        of_seeds, variance = 0.03**2 / n, 0.03**2 / n + items**2
        return stats.t.ppf(0.975, (n - 1) * (variance / of_seeds) ** 2) * math.sqrt(variance)

    assert reach(needed) < 0.02 <= reach(needed - 1) and f"{needed} seeds" in sentence
    more, _ = seeds_needed(0.02, 0.03, 0.008, 0.01, (0.05, 0.05), (6, 5), 6)
    assert more > needed and reach(more, 0.008) < 0.02 <= reach(more - 1, 0.008)
    # A mean of .002 needs its distance to the margin, .008, one-sided.
    inside, _ = seeds_needed(-0.002, 0.03, 0.0, 0.01, (0.05, 0.05), (6, 5), 6)
    assert stats.t.ppf(0.95, inside - 1) * 0.03 / math.sqrt(inside) < 0.008

    # Without a spread: the fewest for a direction and for equivalence, and more than there are.
    def fewest(mean, have):
        return seeds_needed(mean, 0.0, 0.0, 0.01, (0.05, 0.05), (6, 5), have)[0]

    assert (fewest(0.02, 3), fewest(0.002, 3), fewest(0.02, 8)) == (6, 5, 9)


def test_items_that_no_seed_can_replace():
    needed, sentence = seeds_needed(0.01, 0.01, 0.01, 0.01, (0.05, 0.05), (6, 5), 6)
    # (1.96 * 0.01 / 0.01)^2 times the items
    assert needed is None and "more seeds cannot settle it" in sentence and "3.9 times the test items" in sentence


def test_nothing_finite_is_refused():
    for values in ([], [math.nan], [0.1, math.inf], [[0.1, 0.2]]):
        with pytest.raises(InputError, match="finite"):
            paired_interval(values)


def test_an_interval_ends_where_the_metric_does():
    wide, cut = mean_interval([0.44, 0.95]), mean_interval([0.44, 0.95], bounds=(0, 1))
    assert wide.low < 0 and wide.high > 1
    assert (cut.mean, cut.low, cut.high) == (wide.mean, 0, 1)
    inside = mean_interval([0.7, 0.71, 0.72], bounds=(0, 1))
    assert inside == mean_interval([0.7, 0.71, 0.72])
