"""What the choice of items leaves, and Student's test that counts it."""

import math

import numpy as np
import pytest
from scipy import stats

from verdicts.items import Items, Student, item_deviation, of_seeds


def test_without_items_it_is_welch_s_test_with_one_degree_of_freedom_less():
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 7), rng.normal(0, 2, 5)
    expected = stats.ttest_ind(first, second, equal_var=False)
    test = Student(first.mean() - second.mean(), [of_seeds(first), of_seeds(second)], Items(0.0, 1000))
    assert test.mean / test.standard_error == pytest.approx(expected.statistic)
    assert test.freedom == pytest.approx(max(expected.df - 1, 4))
    above, below = test.one_sided_p()
    assert above == pytest.approx(stats.t.sf(expected.statistic, test.freedom)) and above + below == pytest.approx(1)
    low, high = test.ends(0.05)
    half = stats.t.ppf(0.975, test.freedom) * test.standard_error
    assert (low, high) == pytest.approx((test.mean - half, test.mean + half))


def test_items_add_their_variance_and_their_degrees_of_freedom():
    values = np.array([0.80, 0.82, 0.84, 0.83])
    alone = Student(0.1, [of_seeds(values)], Items(0.0, 30))
    assert alone.freedom == pytest.approx(3) and alone.standard_error == pytest.approx(stats.sem(values))
    with_items = Student(0.1, [of_seeds(values)], Items(0.05, 30))
    assert with_items.standard_error == pytest.approx(math.hypot(alone.standard_error, 0.05))
    assert 3 < with_items.freedom < 33 and with_items.ends(0.05)[0] < alone.ends(0.05)[0]


def test_one_seed_tells_nothing_and_equal_seeds_the_point():
    one = Student(0.1, [of_seeds(np.array([0.8]))], Items(0.01, 100))
    assert one.one_sided_p() == (1.0, 1.0) and one.ends(0.05) is None
    point = Student(0.1, [of_seeds(np.full(4, 0.8))], Items(0.0, 100))
    assert point.one_sided_p() == (0.0, 1.0) and point.one_sided_p(0.1) == (1.0, 1.0)
    assert point.ends(0.05) == pytest.approx((0.1, 0.1))


def test_item_deviation_is_what_all_seeds_share():
    """Resampled metrics [R, n] of a shared part and one of each seed: the shared part's deviation is found."""
    rng = np.random.default_rng(1)
    shared = {name: rng.normal(0, 1, (20_000, 1)) for name in ("both", "treatment", "control")}
    own = [rng.normal(0, 1, (20_000, 6)) for _ in range(2)]
    treatment = shared["both"] + 0.5 * shared["treatment"] + own[0]
    control = shared["both"] + 0.25 * shared["control"] + own[1]
    assert item_deviation(treatment, control) == pytest.approx(math.hypot(0.5, 0.25), rel=0.05)
    assert item_deviation(treatment) == pytest.approx(math.hypot(1, 0.5), rel=0.05)
    # Pairs share what is their own as well: it counts among seeds, not among items.
    assert item_deviation(own[0], own[0]) == pytest.approx(0, abs=0.1)
    # A single score has its whole variance.
    assert item_deviation(3 * shared["both"]) == pytest.approx(3, rel=0.05)


def test_items_are_named_with_their_groups():
    assert Items(0.1, 50, 50).words() == "50 items" and Items(0.1, 5, 50).words() == "5 groups of 50 items"
