"""The error rates of the rule, from invented scores to words. docs/error-rates.md has many draws."""

import itertools
import math

import pytest

from reread.verdicts import simulation
from reread.verdicts.rule import words
from reread.verdicts.simulation import NARROW, World, experiments, looks, power, rates

DRAWS = 300
BOUND = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / DRAWS)
WIDE = 20.0


@pytest.mark.parametrize("shape", ["normal", "t3", "spreads 3:1", "both skewed"])
def test_no_difference_is_seldom_called_one(shape):
    """Five comparisons: without Holm's procedure at least one would be wrong in some 20 % of the experiments."""
    world = World(shape, 6, [0.0] * 5, NARROW)
    drawn = list(experiments(world, DRAWS))
    measured = rates(world, drawn, 5)
    assert measured.direction <= BOUND and measured.equivalence == 0 and measured.coverage > 0.93
    uncorrected = [any(evidence.p < 0.05 for evidence in experiment) for experiment in drawn]
    assert sum(uncorrected) / DRAWS > 0.1


def test_a_difference_of_the_margin_is_seldom_called_none_or_more():
    world = World("normal", 6, [WIDE] * 3, WIDE)
    measured = rates(world, list(experiments(world, DRAWS)), 3)
    assert measured.equivalence <= BOUND and measured.size <= BOUND and measured.direction == 0


def test_true_differences_and_true_equivalence_are_not_wrong():
    world = World("normal", 6, [10.0, -10.0, 0.0], 5.0)
    measured = rates(world, list(experiments(world, 50)), 3)
    assert (measured.direction, measured.size, measured.equivalence) == (0, 0, 0)


def test_two_samples_find_more_than_pairs():
    world = World("normal", 8, [2.0], NARROW, item_deviation=0.0)
    (alone, before), (_, now) = power(world, (1, 5), DRAWS)
    assert now > before + 0.15 and alone > before


def test_p_that_no_level_reaches_need_not_be_exact(monkeypatch):
    """The words with and without the test over seeds of evidence that the other analysis does not show."""
    world = World("t3", 6, [0.0, 2.0, 10.0], 2.0)
    quick = list(experiments(world, 100))
    monkeypatch.setattr(simulation, "EXACT", 1.0)
    whole = list(experiments(world, 100))
    assert [words(experiment, 0.05) for experiment in quick] == [words(experiment, 0.05) for experiment in whole]
    assert any(fast.p < slow.p for fast, slow in zip(itertools.chain(*quick), itertools.chain(*whole), strict=True))


def test_seeds_that_are_added_until_a_direction_is_shown_cost_more_than_alpha():
    world = World("normal", 12, [0.0], NARROW)
    assert looks(world, (6, 12), 0.025, 600) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 600)
    assert looks(world, (6, 8, 10, 12), 0.05, 600) > looks(world, (6, 12), 0.025, 600) + 0.02
