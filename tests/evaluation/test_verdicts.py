"""Each verdict, and each reason for which there is none."""

import pytest

from evaluation.bootstrap import TwoWay
from evaluation.statistics import Interval
from evaluation.verdicts import FAILS, HOLDS, INCONCLUSIVE, NONE, RULE, Measured, Pair, judge

PAIR = Pair("p", "New beats old.", "Author 2020", "new", "old", "accuracy")
STEADY = [0.020, 0.025, 0.030, 0.022, 0.028, 0.024, 0.026, 0.027]


def measured(differences, low, high, item=0.001, flags=()):
    mean = sum(differences) / len(differences)
    interval = Interval(mean, low, high, len(differences), "bootstrap")
    return Measured(range(len(differences)), differences, TwoWay(interval, item, item, 10_000), flags)


def judged(differences, low, high, smallest_effect=0.01, **keywords):
    return judge([PAIR], [measured(differences, low, high, **keywords)], smallest_effect)[0]


def test_holds():
    verdict = judged(STEADY, 0.015, 0.035)
    assert verdict.verdict == HOLDS and verdict.p == verdict.holm_p == 2 / 256
    assert verdict.sentence == "new is better than old by 0.0253 in accuracy over 8 seeds."
    assert verdict.seeds_needed is None


def test_fails_is_the_same_the_other_way_round():
    verdict = judged([-one for one in STEADY], -0.035, -0.015)
    assert verdict.verdict == FAILS and "old is better than new" in verdict.sentence


def test_no_difference_that_matters():
    assert judged([0.001, -0.002, 0.002, 0, 0.001, -0.001], -0.004, 0.005).verdict == NONE


def test_no_difference_that_matters_although_significant():
    verdict = judged([one / 10 for one in STEADY], 0.001, 0.004)
    assert verdict.holm_p < 0.05 and verdict.verdict == NONE


@pytest.mark.parametrize("high", [0.004999999999999993, 0.005, 0.0050000000000000044])
def test_an_interval_that_ends_at_the_smallest_effect_is_not_inside_of_it(high):
    """Whatever the rounding of its end: counts of right answers that differ by 0.005 are equal to it."""
    small = [0.001, -0.002, 0.002, 0, 0.001, -0.001]
    assert judged(small, -0.004, high, smallest_effect=0.005).verdict == INCONCLUSIVE
    assert judged(small, -high, 0.004, smallest_effect=0.005).verdict == INCONCLUSIVE
    assert judged(small, -0.004, 0.0049, smallest_effect=0.005).verdict == NONE


@pytest.mark.parametrize("mean", [0.004999999999999993, 0.0050000000000000044])
def test_a_mean_of_the_smallest_effect_is_one_that_matters(mean):
    spread = [one - 0.02525 for one in STEADY]
    assert judged([one / 10 + mean for one in spread], 0.001, 0.009, smallest_effect=0.005).verdict == HOLDS
    assert judged([one / 10 - mean for one in spread], -0.009, -0.001, smallest_effect=0.005).verdict == FAILS


def test_seeds_are_asked_for_that_pass_after_holm_s_correction():
    """Of one pair, intervals above 0 are enough; beside nine others that show nothing its p counts nine times more."""
    differences = [0.021, 0.004, 0.031, -0.006, 0.028, 0.012, -0.003, 0.024, 0.017, 0.002]
    nothing = measured([0.001, -0.001] * 5, -0.02, 0.02)
    found = judge([PAIR] * 10, [measured(differences, 0.002, 0.024), *[nothing] * 9], 0.01)[0]
    assert found.verdict == INCONCLUSIVE and found.p < 0.05 < found.holm_p
    assert found.seeds_needed > len(differences) + 1 and "lacks little" not in found.sentence


def test_inconclusive_says_how_many_seeds():
    verdict = judged([0.05, -0.04, 0.03, 0.02, -0.03, 0.04], -0.02, 0.045)
    assert verdict.verdict == INCONCLUSIVE and verdict.seeds_needed > 6
    assert f"{verdict.seeds_needed} seeds would" in verdict.sentence and "leave it open" in verdict.sentence


@pytest.mark.parametrize("low", [-0.001, -0.02])
def test_both_analyses_must_agree(low):
    verdict = judged(STEADY, low, 0.06)
    assert verdict.verdict == INCONCLUSIVE and "disagree" in verdict.sentence


def test_a_difference_below_the_smallest_effect_neither_holds_nor_is_nothing():
    verdict = judged([one / 3 for one in STEADY], 0.002, 0.0105, smallest_effect=0.0095, item=1e-5)
    assert verdict.verdict == INCONCLUSIVE
    assert verdict.seeds_needed > 8


@pytest.mark.parametrize(("seeds", "least_p"), [(1, "1"), (3, "0.25"), (5, "0.0625")])
def test_few_seeds_decide_nothing(seeds, least_p):
    verdict = judged(STEADY[:seeds], 0.015, 0.035)
    assert verdict.verdict == INCONCLUSIVE and verdict.least_seeds == 6
    assert f"no p can be under {least_p}" in verdict.sentence and "at least 6 seeds" in verdict.sentence


def test_holm_needs_more_seeds_for_more_pairs():
    six = measured(STEADY[:6], 0.015, 0.035)
    assert judge([PAIR], [six], 0.01)[0].verdict == HOLDS
    verdicts = judge([PAIR] * 3, [six, six, six], 0.01)
    assert {verdict.verdict for verdict in verdicts} == {INCONCLUSIVE}
    assert verdicts[0].least_seeds == 7 and "Holm's correction over 3 pairs" in verdicts[0].sentence
    eight = measured(STEADY, 0.015, 0.035)
    assert {verdict.verdict for verdict in judge([PAIR] * 3, [eight] * 3, 0.01)} == {HOLDS}


def test_a_pair_that_was_not_run_counts_in_the_correction():
    verdicts = judge([PAIR, PAIR], [measured(STEADY, 0.015, 0.035), None], 0.01)
    assert verdicts[0].holm_p == 2 * verdicts[0].p and verdicts[0].verdict == HOLDS
    assert verdicts[1].verdict == INCONCLUSIVE and "Not measured" in verdicts[1].sentence
    assert verdicts[1].as_dict()["over_seeds"] is None


def test_equal_differences_give_the_point():
    verdict = judged([0.02] * 8, 0.015, 0.025)
    assert verdict.verdict == HOLDS and verdict.over_seeds.low == verdict.over_seeds.high == pytest.approx(0.02)
    assert "equal" in verdict.over_seeds.method
    assert judged([0.0] * 8, 0.0, 0.0).verdict == NONE


def test_a_perfect_score_is_no_verdict():
    verdict = judged(STEADY, 0.015, 0.035, flags=["Suspiciously perfect: new."])
    assert verdict.verdict == INCONCLUSIVE and "Suspiciously perfect" in verdict.sentence
    assert verdict.seeds_needed is None


def test_items_that_seeds_cannot_make_up_for():
    verdict = judged([0.05, -0.04, 0.03, 0.02, -0.03, 0.04], -0.05, 0.06, item=0.02)
    assert verdict.seeds_needed is None and "more seeds cannot settle it" in verdict.sentence


def test_the_rule_names_every_verdict():
    assert all(f"- {verdict}:" in RULE for verdict in (HOLDS, FAILS, NONE, INCONCLUSIVE))


def test_a_verdict_is_flat_values():
    values = judged(STEADY, 0.015, 0.035).as_dict()
    assert values["claim"] == "New beats old." and values["over_seeds"]["low"] > 0 and "pair" not in values
