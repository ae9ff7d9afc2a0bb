"""Each verdict, and each reason for which there is none."""

import dataclasses
from statistics import mean, stdev

import pytest

from evaluation.bootstrap import TwoWay
from evaluation.power import seeds_needed
from evaluation.statistics import Interval
from evaluation.verdicts import (
    EQUIVALENT,
    INCONCLUSIVE,
    REFUTED,
    RULE,
    SUPPORTED,
    Comparison,
    Measured,
    judge,
)

COMPARISON = Comparison("p", "New beats old.", "Author 2020", "new", "old", "accuracy")
STEADY = [0.020, 0.025, 0.030, 0.022, 0.028, 0.024, 0.026, 0.027]
NOTHING = [0.001, -0.002, 0.002, 0, 0.001, -0.001, 0.0005, -0.0005]


def measured(differences, error=0.002, item=0.001, **keywords):
    middle, n = mean(differences), len(differences)
    interval = Interval(middle, middle - 2 * error, middle + 2 * error, n, "t interval")
    return Measured(range(n), differences, TwoWay(interval, error, 30, item, item, 2000), **keywords)


def judged(differences, error=0.002, margin=0.01, alpha=0.05, **keywords):
    return judge([COMPARISON], [measured(differences, error, **keywords)], margin, alpha)[0]


def test_supported():
    verdict = judged(STEADY)
    assert verdict.verdict == SUPPORTED and verdict.p == verdict.holm_p == 2 / 256 > verdict.p_items
    assert verdict.sentence == "new is better than old by 0.0253 in accuracy over 8 seeds."
    assert verdict.seeds_needed is None


def test_refuted_is_the_same_the_other_way_round():
    verdict = judged([-one for one in STEADY])
    assert verdict.verdict == REFUTED and "old is better than new" in verdict.sentence


def test_equivalent():
    verdict = judged(NOTHING)
    assert verdict.verdict == EQUIVALENT and "differ by less than 0.01" in verdict.sentence
    assert verdict.equivalence_p == verdict.holm_equivalence_p == 1 / 256


def test_a_p_of_alpha_is_not_below_it():
    assert judged(STEADY, alpha=2 / 256).verdict == judged(NOTHING, alpha=1 / 256).verdict == INCONCLUSIVE


def test_equivalent_although_significant():
    verdict = judged([one / 10 for one in STEADY], error=0.0002)
    assert verdict.holm_p < 0.05 and verdict.verdict == EQUIVALENT


@pytest.mark.parametrize("error", [0.0025, 0.004])
def test_equivalence_needs_both_analyses(error):
    """Over seeds and items the mean is 2.5 (or 4) thousandths from a margin of 5: two (or one) standard errors."""
    differences = [one / 10 for one in STEADY]
    assert judged(differences, error, margin=0.0075).verdict == (EQUIVALENT if error == 0.0025 else INCONCLUSIVE)


def test_equivalence_is_corrected_over_the_comparisons():
    """Once it passes, p = 1/64; beside three that show nothing it is 4/64."""
    six = [measured(NOTHING[:6])]
    assert judge([COMPARISON], six, 0.01)[0].verdict == EQUIVALENT
    many = judge([COMPARISON] * 4, six * 4, 0.01)
    assert {verdict.verdict for verdict in many} == {INCONCLUSIVE} and many[0].holm_equivalence_p == 4 / 64


@pytest.mark.parametrize("mean", [0.004999999999999993, 0.0050000000000000044])
def test_a_mean_of_the_margin_is_one_that_matters(mean):
    spread = [one - 0.02525 for one in STEADY]
    assert judged([one / 10 + mean for one in spread], 0.001, margin=0.005).verdict == SUPPORTED
    assert judged([one / 10 - mean for one in spread], 0.001, margin=0.005).verdict == REFUTED


def test_a_comparison_may_name_its_own_margin():
    own = dataclasses.replace(COMPARISON, equivalence_margin=0.05)
    wide, narrow = judge([own, COMPARISON], [measured(STEADY)] * 2, 0.01)
    assert (wide.verdict, narrow.verdict) == (EQUIVALENT, SUPPORTED)
    assert wide.as_dict()["equivalence_margin"] == 0.05


def test_seeds_are_asked_for_that_pass_after_holm_s_correction():
    """Beside nine comparisons that show nothing its p counts ten times."""
    differences = [0.021, 0.004, 0.031, -0.006, 0.028, 0.012, -0.003, 0.024, 0.017, 0.002]
    nothing = measured([0.001, -0.001] * 5, 0.01)
    alone = judge([COMPARISON], [measured(differences)], 0.01)[0]
    found = judge([COMPARISON] * 10, [measured(differences), *[nothing] * 9], 0.01)[0]
    assert alone.verdict == SUPPORTED
    assert found.verdict == INCONCLUSIVE and found.p < 0.05 < found.holm_p
    assert found.seeds_needed > len(differences) and "after Holm's correction" in found.sentence


def test_inconclusive_says_how_many_seeds():
    differences = [0.05, -0.04, 0.03, 0.02, -0.03, 0.04]
    verdict = judged(differences, 0.02)
    needed, said = seeds_needed(mean(differences), stdev(differences), 0.001, 0.01, (0.05, 0.05), (6, 5), 6)
    assert verdict.verdict == INCONCLUSIVE and verdict.seeds_needed == needed and said in verdict.sentence
    assert verdict.sentence.startswith("new is better than old by 0.0117 in accuracy over 6 seeds, which is")
    assert judged([-one for one in differences], 0.02).sentence.startswith("new is worse than old by 0.0117")
    level = judged([one - mean(differences) + 0.00003 for one in differences], 0.02)
    assert level.sentence.startswith("new is level with old over 6 seeds, which is inconclusive")


def test_seeds_are_asked_for_that_show_equivalence_after_holm_s_correction():
    """Each of three equal p values counts three times."""
    differences = [0.02, -0.012, 0.01, -0.02, 0.008, 0.001, -0.004]
    found = judge([COMPARISON] * 3, [measured(differences)] * 3, 0.01)[0]
    assert found.holm_equivalence_p == pytest.approx(3 * found.equivalence_p)
    expected = seeds_needed(mean(differences), stdev(differences), 0.001, 0.01, (1, 0.05 / 3), (7, 6), 7)
    assert found.verdict == INCONCLUSIVE and found.seeds_needed == expected[0]


@pytest.mark.parametrize("error", [0.013, 0.03])
def test_both_analyses_must_agree_on_a_difference(error):
    verdict = judged(STEADY, error)
    assert verdict.verdict == INCONCLUSIVE and verdict.p < 0.05 < verdict.p_items == verdict.holm_p
    assert "disagree" in verdict.sentence


def test_a_difference_below_the_margin_is_neither_supported_nor_equivalent():
    verdict = judged([one / 3 for one in STEADY], 0.0015, margin=0.0095, item=1e-5)
    assert verdict.verdict == INCONCLUSIVE and "below the margin" in verdict.sentence
    assert verdict.seeds_needed > 8


@pytest.mark.parametrize(("seeds", "least_p"), [(1, "1"), (3, "0.25"), (5, "0.0625")])
def test_few_seeds_decide_no_direction(seeds, least_p):
    verdict = judged(STEADY[:seeds])
    assert verdict.verdict == INCONCLUSIVE and verdict.least_seeds == 6
    assert f"no p can be below {least_p}: a direction needs at least 6 seeds" in verdict.sentence
    assert f"over {seeds} seed{'s' if seeds > 1 else ''}, which" in verdict.sentence


def test_one_difference_has_no_spread_and_two_have():
    assert judged(STEADY[:1]).seeds_needed is None and judged(STEADY[:2]).seeds_needed == 6


def test_holm_needs_more_seeds_for_more_comparisons():
    six = measured(STEADY[:6])
    assert judge([COMPARISON], [six], 0.01)[0].verdict == SUPPORTED
    verdicts = judge([COMPARISON] * 3, [six] * 3, 0.01)
    assert {verdict.verdict for verdict in verdicts} == {INCONCLUSIVE}
    assert verdicts[0].least_seeds == 7 and "Holm's correction over 3 comparisons" in verdicts[0].sentence
    eight = measured(STEADY)
    assert {verdict.verdict for verdict in judge([COMPARISON] * 3, [eight] * 3, 0.01)} == {SUPPORTED}


def test_a_comparison_that_was_not_run_counts_in_the_correction():
    verdicts = judge([COMPARISON] * 2, [measured(STEADY), None], 0.01)
    assert verdicts[0].holm_p == 2 * verdicts[0].p and verdicts[0].verdict == SUPPORTED
    assert verdicts[1].verdict == INCONCLUSIVE and "Not measured" in verdicts[1].sentence
    assert verdicts[1].as_dict()["over_seeds"] is None and verdicts[1].earlier_reads == 0


@pytest.mark.parametrize(
    ("changes", "networks", "baseline"),
    [
        ({}, ["new", "old"], None),
        ({"control": "linear"}, ["new"], "linear"),
        ({"control": "a paper", "reference": 0.9}, ["new"], None),
    ],
)
def test_the_sides_that_are_networks_and_the_one_that_is_a_baseline(changes, networks, baseline):
    comparison = dataclasses.replace(COMPARISON, **changes)
    assert (comparison.networks, comparison.baseline) == (networks, baseline)
    values = comparison.as_dict()
    assert values["equivalence_margin"] is None and values.get("reference") == comparison.reference
    assert ("reference" in values) == (comparison.reference is not None)
    (verdict,) = judge([comparison], [None], 0.01)
    lacks = "new and old have no finished seed in common" if not changes else "new has no finished seed."
    assert lacks in verdict.sentence and verdict.as_dict()["baseline"] == baseline


def test_equal_differences_give_the_point():
    verdict = judged([0.02] * 8)
    assert verdict.verdict == SUPPORTED and verdict.over_seeds.low == verdict.over_seeds.high == pytest.approx(0.02)
    assert "equal" in verdict.over_seeds.method
    assert judged([0.0] * 8, 0.0).verdict == EQUIVALENT


def test_a_perfect_score_is_no_verdict():
    verdict = judged(STEADY, flags=["Suspiciously perfect: new."])
    assert verdict.verdict == INCONCLUSIVE and "Suspiciously perfect" in verdict.sentence
    assert verdict.seeds_needed is None


def test_a_test_split_that_was_read_before_is_marked():
    before, first = judged(STEADY, earlier_reads=2), judged(STEADY)
    assert before.verdict == SUPPORTED and before.as_dict()["earlier_reads"] == 2
    assert "read before with other settings: 2 times" in before.sentence and "read before" not in first.sentence
    assert judged(STEADY, earlier_reads=1).sentence.endswith("read before with other settings: once.")


def test_the_rule_names_every_verdict():
    assert all(f"- {verdict}:" in RULE for verdict in (SUPPORTED, REFUTED, EQUIVALENT, INCONCLUSIVE))


def test_a_verdict_is_flat_values():
    values = judged(STEADY).as_dict()
    assert values["claim"] == "New beats old." and values["over_seeds"]["low"] > 0 and "comparison" not in values
    assert values["over_seeds_and_items"] == dataclasses.asdict(measured(STEADY).two_way.interval)
    assert (values["item_deviation"], values["resamples"]) == (0.001, 2000)
