"""The error rates of the whole rule, from answers of invented networks to verdicts.

Six comparisons of 8 seeds and 60 items, both drawn. Without Holm's correction at least one of six would be wrong in
some 20 % of the experiments; the bound is 5 % and 2.5 standard errors of the draws. docs/verdicts.md has many draws.
"""

import math

import pytest

from evaluation.simulation import World, rates

DRAWS = 250
BOUND = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / DRAWS)


@pytest.mark.parametrize("skewed", [False, True])
def test_no_difference_is_seldom_called_one(skewed):
    """With a margin near 0 nothing but the corrected p stands between no difference and a wrong direction."""
    found = rates(World([0.0] * 6, items=60, margin=0.005, skewed=skewed), DRAWS)
    assert found.wrong_direction <= BOUND and found.decided_equivalent == 0


@pytest.mark.parametrize("skewed", [False, True])
def test_a_difference_of_the_margin_is_seldom_called_none(skewed):
    found = rates(World([0.1, -0.1] * 3, items=60, margin=0.1, skewed=skewed), DRAWS)
    assert found.wrong_equivalent <= BOUND and found.wrong_direction == 0
    assert 0.2 < found.decided_direction < 0.6


def test_true_differences_and_true_equivalence_are_found():
    assert rates(World([0.25] * 6, items=60), 40).decided_direction > 0.95
    assert rates(World([0.0] * 6, items=60, margin=0.2), 40).decided_equivalent > 0.95
