"""Statistics against hand-computed values, scipy, and simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from evaluation.statistics import holm, least_seeds, mean_interval, paired_interval, seeds_needed, sign_flip_p
from storage.errors import InputError


def test_mean_interval_is_the_t_interval():
    values = [0.81, 0.83, 0.80, 0.86]
    found = mean_interval(values)
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert (found.mean, found.low, found.high) == pytest.approx((np.mean(values), low, high))


def test_one_value_has_no_interval_and_equal_values_the_point():
    assert mean_interval([0.5]).low is None and paired_interval([0.5]).low is None
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
    assert sign_flip_p([0.1] * 60) == 1 / 100_001
    assert sign_flip_p(differences) == sign_flip_p(differences)


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
    # Three pairs: 3 / 64 is under 0.05, 3 / 32 is not.
    assert [least_seeds(0.05, pairs) for pairs in (2, 3, 4, 10)] == [7, 7, 8, 9]


def test_coverage_of_both_intervals():
    rng = np.random.default_rng(1)
    draws = [rng.normal(0.01, 0.01, 8) for _ in range(300)]
    covered = {
        function.__name__: np.mean([found.low <= 0.01 <= found.high for found in map(function, draws)])
        for function in (mean_interval, paired_interval)
    }
    assert 0.91 < covered["mean_interval"] < 0.99
    assert 0.82 < covered["paired_interval"] < 0.96


@pytest.mark.parametrize("differences", [[0, 0, 0, 0, 0, 0, 1e-3], [0, 1], [1e-9, -1e-9, 0], [0.1, 0.1, 0.1, -0.1]])
def test_degenerate_differences_have_finite_intervals(differences):
    found = paired_interval(differences)
    assert math.isfinite(found.low) and math.isfinite(found.high)
    assert found.low <= found.mean <= found.high


def test_the_bootstrap_is_the_same_each_time():
    assert paired_interval([0.1, 0.2, 0.15, 0.3]) == paired_interval([0.1, 0.2, 0.15, 0.3])


def test_seeds_needed_reach_the_width():
    differences = [0.00, 0.02, 0.04, -0.01, 0.03, 0.01]
    found = seeds_needed(differences, 0.01)
    spread = np.std(differences, ddof=1)

    def half(n):
        return stats.t.ppf(0.975, n - 1) * spread / math.sqrt(n)

    assert half(found.seeds) <= 0.01 < half(found.seeds - 1)
    assert f"{found.seeds} seeds" in found.sentence
    assert seeds_needed(differences, 0.01, item_deviation=0.004).seeds > found.seeds


def test_items_that_no_seed_can_make_up_for():
    found = seeds_needed([0.0, 0.02, 0.01], 0.01, item_deviation=0.01)
    assert found.seeds is None
    # (1.96 * 0.01 / 0.01)^2 times the items
    assert "more seeds cannot settle it" in found.sentence and "3.8 times the test items" in found.sentence


def test_nothing_finite_is_refused():
    for values in ([], [math.nan], [0.1, math.inf]):
        with pytest.raises(InputError, match="finite"):
            paired_interval(values)
