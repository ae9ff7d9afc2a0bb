"""The error that the choice of items leaves, and Student's test that counts it."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from reread.verdicts.items import MANY, Items, Student, errors_of, item_deviation, of_seeds, quantile, tail


def test_without_items_it_is_welch_s_test_with_one_degree_of_freedom_less():
    rng = np.random.default_rng(0)
    first, second = rng.normal(1, 1, 7), rng.normal(0, 2, 5)
    expected = stats.ttest_ind(first, second, equal_var=False)
    test = Student(first.mean() - second.mean(), [of_seeds(first), of_seeds(second)], Items(0.0, 1000))
    freedom, error = max(expected.df - 1, 4), test.mean / expected.statistic
    above, below = test.one_sided_p()
    assert above == pytest.approx(stats.t.sf(expected.statistic, freedom)) and above + below == pytest.approx(1)
    low, high = test.ends(0.05)
    half = stats.t.ppf(0.975, freedom) * error
    assert (low, high) == pytest.approx((test.mean - half, test.mean + half))


def test_the_degrees_of_freedom_are_no_fewer_than_the_smaller_side_has():
    first, second = np.array([0.1, 0.9, 0.4]), np.full(8, 0.5)
    ((variance, freedom),) = errors_of([of_seeds(first), of_seeds(second)], Items())
    assert variance == pytest.approx(stats.sem(first) ** 2) and freedom == 2


@pytest.mark.parametrize("freedom", [(1, 5), (3, 29), (9.4, 1499), (11, MANY)])
def test_the_errors_of_seeds_and_of_items_add_as_independent_student_s_t(freedom):
    """The tail against an integral over one of the two errors, and its quantile against the tail."""
    first, second = stats.t(freedom[0], scale=0.02), stats.t(freedom[1], scale=0.03)
    errors = [(0.02**2, freedom[0]), (0.03**2, freedom[1])]

    def beyond(share: float, distance: float) -> float:
        """How likely the sum exceeds ``distance`` where the second error has so large a share below it."""
        return first.sf(distance - second.ppf(share))

    for distance in (0.0, 0.05, 0.2):
        expected, _ = integrate.quad(beyond, 0, 1, args=(distance,), epsabs=1e-10, limit=500)
        assert tail(errors, distance) == pytest.approx(expected, rel=1e-5, abs=1e-9)
    for level in (0.25, 0.025, 0.001):
        assert tail(errors, quantile(errors, level)) == pytest.approx(level, rel=1e-6)


def test_an_error_that_is_small_beside_the_other_adds_nothing():
    for large, freedom in ((0, 3), (1, 40)):
        errors = [(1e-20, 7), (1e-20, 7)]
        errors[large] = (0.04, freedom)
        assert tail(errors, 0.5) == pytest.approx(stats.t.sf(0.5 / 0.2, freedom), rel=1e-7)


def test_many_items_lend_few_seeds_no_degrees_of_freedom():
    """The interval is wider than by Satterthwaite's degrees of freedom of both errors together."""
    values = np.array([0.80, 0.82, 0.84, 0.83])
    low, high = Student(0.1, [of_seeds(values)], Items(0.01, 5000)).ends(0.05)
    known = math.hypot(stats.sem(values), 0.01)
    assert (high - low) / 2 > stats.t.ppf(0.975, 3 * (known / stats.sem(values)) ** 4) * known


def test_one_seed_tells_nothing_and_equal_seeds_the_point():
    single = Student(0.1, [of_seeds(np.array([0.8]))], Items(0.01, 100))
    assert single.one_sided_p() == (1.0, 1.0) and single.ends(0.05) is None
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
