"""Statistics against hand-computed values, scipy, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from reread.storage.errors import InputError
from reread.verdicts.power import seeds_needed
from reread.verdicts.seeds import least_seeds
from reread.verdicts.statistics import (
    SignFlip,
    is_skewed,
    levels,
    mean_interval,
    outlying,
    paired_interval,
    shift,
    sign_flip_p,
)


def test_mean_interval_is_the_t_interval():
    values = [0.81, 0.83, 0.80, 0.86]
    interval = mean_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (interval.mean, interval.low, interval.high) == pytest.approx((np.mean(values), low, high))


def test_one_value_has_no_interval_and_equal_values_the_point():
    single = paired_interval([0.5])
    assert mean_interval([0.5]).low is None and single.low is None and not single.above(0) and not single.below(1)
    # 0.9 - 0.8 and 0.7 - 0.6 differ in the last bits, which must not make a spread.
    for function in (mean_interval, paired_interval):
        interval = function([0.9 - 0.8, 0.7 - 0.6, 0.1])
        assert interval.low == interval.high == interval.mean and "equal" in interval.method


def test_sign_flip_by_hand():
    # Of the 8 patterns of signs of (1, 2, 4), |sum| is 7 in two: p = 2/8. Of (1, 2, -4), |-1| or more in all.
    assert sign_flip_p([1, 2, 4]) == 0.25
    assert sign_flip_p([1, 2, -4]) == 1.0
    assert sign_flip_p([0.1] * 6) == 2 / 64
    assert sign_flip_p([0.0] * 8) == 1.0
    # A mean of 0 that rounding makes unequal to 0, at any scale: of 7 means three are below, three above.
    for scale in (1, 1e6 / 3):
        assert SignFlip(np.array([0.1, 0.2, -0.3]) * scale).one_sided_p() == (5 / 8, 5 / 8)


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
    interval, expected = paired_interval(differences), mean_interval(differences)
    assert interval.method == "inverted sign-flip test"
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=0.05)


def test_sign_flip_keeps_its_level():
    rng = np.random.default_rng(0)
    rejected = np.mean([sign_flip_p(rng.normal(0, 1, 8)) < 0.05 for _ in range(1500)])
    assert 0.03 < rejected <= 0.06


def test_holm_s_levels_by_hand():
    # 0.01 is below a quarter of alpha and 0.016 below a third; 0.03 is not below a half, which ends it for the rest.
    assert levels([0.04, 0.01, 0.03, 0.016], 0.05) == pytest.approx([0.05 / 2, 0.05 / 4, 0.05 / 2, 0.05 / 3])
    assert levels([0.5, 0.9], 0.05) == [0.025, 0.025] and levels([], 0.05) == []
    # A p of its level is not below it.
    assert levels([0.025, 0.001], 0.05) == [0.05, 0.025] and levels([0.025, 0.9], 0.05) == [0.025, 0.025]


def test_least_seeds():
    assert least_seeds(0.05, one_figure=True) == 6 and least_seeds(0.05) == 4
    # Its p must be below alpha: of 6 seeds it is 2 / 64, of 4 and 4 it is 2 / 70.
    assert (least_seeds(2 / 64, one_figure=True), least_seeds(2 / 63, one_figure=True)) == (7, 6)
    assert (least_seeds(2 / 70), least_seeds(2 / 69)) == (5, 4)
    assert [least_seeds(0.05, pairs, one_figure=True) for pairs in (2, 3, 4, 10)] == [7, 7, 8, 9]
    assert [least_seeds(0.05, pairs) for pairs in (2, 6, 9, 13)] == [5, 5, 6, 6]


@pytest.mark.parametrize("alpha", [0.05, 1 / 16])
def test_the_interval_inverts_the_test(alpha):
    """0 is excluded exactly where p is below alpha, for differences of counts too, whose means tie, and a p of 1/16."""
    rng = np.random.default_rng(2)
    for _ in range(300):
        differences = np.round(rng.normal(0.8, 1, rng.integers(6, 11)) * rng.integers(1, 6)) / 611
        interval = paired_interval(differences, 1 - alpha)
        assert (interval.above(0) or interval.below(0)) == (sign_flip_p(differences) < alpha)


def test_six_seeds_have_their_range_and_five_no_exact_interval():
    # Of the 64 patterns one on each side is outside: the subset means below all others and above all others.
    interval = paired_interval([3, 1, 2, 6, 5, 4])
    assert (interval.low, interval.high) == (1, 6) and "sign-flip" in interval.method
    assert paired_interval([3, 1, 2, 6, 5]).method == "t interval"


def test_the_interval_over_seeds_covers_what_it_says():
    """The 95 % interval holds the true mean in at least 94 % of the draws: normal, and skewed alike on both sides."""
    rng = np.random.default_rng(1)
    for draw in (lambda: rng.normal(0, 1, 8), lambda: rng.gamma(2, 1, 8) - rng.gamma(2, 1, 8)):
        held = [
            not (interval.above(0) or interval.below(0)) for interval in (paired_interval(draw()) for _ in range(2000))
        ]
        assert 0.935 <= np.mean(held) <= 0.985


def test_equivalence_by_two_one_sided_tests():
    # All six are below .3, and all above -.3: 1/64 on either side. At .25 one subset mean is not below.
    test = SignFlip([0.1, 0.2, 0.25, -0.1, 0.0, 0.05])
    assert test.one_sided_p(-0.3)[0] == test.one_sided_p(0.3)[1] == 1 / 64
    assert test.one_sided_p(0.25)[1] == 2 / 64 and test.one_sided_p(0.3)[0] == 1


def test_equivalence_keeps_its_level_at_the_margin():
    rng = np.random.default_rng(5)
    passed = np.mean([SignFlip(rng.normal(0.02, 0.01, 8)).one_sided_p(0.02)[1] < 0.05 for _ in range(1500)])
    assert 0.03 < passed <= 0.06


def test_the_ends_of_the_sign_flip_test_are_those_of_the_paired_interval():
    differences = np.random.default_rng(6).normal(0.4, 1, 8)
    interval, test = paired_interval(differences), SignFlip(differences)
    assert test.ends(0.05) == (interval.low, interval.high) and SignFlip(differences[:5]).ends(0.05) is None
    low, high = test.ends(0.05)
    assert test.one_sided_p(low - 1e-6)[0] < 0.025 <= test.one_sided_p(low + 1e-6)[0]
    assert test.one_sided_p(high + 1e-6)[1] < 0.025 <= test.one_sided_p(high - 1e-6)[1]


def test_the_robust_estimate_by_hand():
    # Of two samples the median of 1, 2, 99, 0, 1, 98; of one the median of the means of its pairs.
    assert shift(np.array([1.0, 2.0, 99.0]), np.array([0.0, 1.0])) == 1.5
    assert shift(np.array([1.0, 2.0, 9.0])) == 3.5
    assert shift(np.array([0.82, 0.81, 0.80, 0.10]), np.array([0.80, 0.79])) == pytest.approx(0.01)


def test_what_lies_far_from_its_median():
    values = np.array([0.80, 0.81, 0.79, 0.80, 0.10, 0.99])
    assert outlying(values, 0.05).tolist() == [False] * 4 + [True, True]
    # Nearer than the floor: no seed of a side without spread is far.
    assert not outlying(np.array([0.80, 0.80, 0.80, 0.81]), 0.05).any()
    assert is_skewed(np.exp(np.linspace(0, 6, 12))) and not is_skewed(np.linspace(0, 1, 12))
    assert not is_skewed(np.exp(np.linspace(0, 6, 7))) and not is_skewed(np.full(9, 0.5))


@pytest.mark.parametrize("differences", [[0, 0, 0, 0, 0, 0, 1e-3], [0, 1], [1e-9, -1e-9, 0], [0.1, 0.1, 0.1, -0.1]])
def test_degenerate_differences_have_finite_intervals(differences):
    interval = paired_interval(differences)
    assert math.isfinite(interval.low) and math.isfinite(interval.high)
    assert interval.low <= interval.mean <= interval.high


def test_seeds_needed_have_the_power_that_they_are_said_to_have():
    """A mean of .02 with a standard deviation of .03: the first n of each side at which Student's test has 80 %."""
    needed, sentence = seeds_needed(0.02, 0.03, 0.0, 0.01, (0.05, 0.05), 4, 2)
    deviation = 0.03 / math.sqrt(2)

    def power(n):
        noncentral = 0.02 / (deviation * math.sqrt(2 / n))
        return stats.nct.sf(stats.t.ppf(0.975, 2 * n - 3), 2 * n - 3, noncentral)

    assert power(needed) >= 0.78 and power(needed - 2) < 0.8 and f"with {needed} seeds of each side" in sentence
    more, _ = seeds_needed(0.02, 0.03, 0.005, 0.01, (0.05, 0.05), 4, 2)
    assert more > needed
    # A mean of .001 is nearer to equivalence within .02 than to a direction.
    _, inside = seeds_needed(0.001, 0.03, 0.0, 0.02, (0.05, 0.05), 4, 2)
    assert "would show equivalence with a power of 80 %" in inside.replace("80%", "80 %")
    # Without a spread: the fewest that there can be.
    assert seeds_needed(0.02, 0.0, 0.0, 0.01, (0.05, 0.05), 4, 2)[0] == 4


def test_items_that_no_seed_can_replace():
    needed, sentence = seeds_needed(0.01, 0.01, 0.01, 0.01, (0.05, 0.05), 4, 2)
    assert needed is None and "standard error of 0.0100: more seeds would not show" in sentence


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
