"""Each word, and each reason for which there is none."""

import dataclasses
import json
import math

import numpy as np
import pytest

from reread.verdicts.items import Items, of_seeds
from reread.verdicts.reads import EarlierReads
from reread.verdicts.rule import (
    DIFFERENT,
    EQUIVALENT,
    INCONCLUSIVE,
    NETWORKS,
    ONE_FIGURE,
    PAIRS,
    REFUTED,
    RULE,
    SUPPORTED,
    VERSION,
    WORDS,
    Comparison,
    Measured,
    Side,
    judge,
    which_look,
)
from reread.verdicts.verify import judge_again

COMPARISON = Comparison("p", "New beats old.", "Author 2020", "new", "old", "accuracy")
OLD = [0.800, 0.803, 0.798, 0.801, 0.799, 0.802, 0.800, 0.797]
NEW = [0.825, 0.828, 0.823, 0.827, 0.824, 0.826, 0.822, 0.825]
ITEMS = Items(0.0005, 10_000, 10_000, 2000)
# Ends that tie with a bound: scores are rounded.
NEAR = 1e-9


def side(scores) -> Side:
    return Side(list(scores), range(10, 10 + len(scores)))


def networks(first=NEW, second=OLD, items=ITEMS, **others) -> Measured:
    return Measured(NETWORKS, side(first), side(second), items, **others)


def judged(measured=None, margin=0.01, alpha=0.05, look=None):
    return judge([COMPARISON], [measured or networks()], margin, alpha, look)[0]


def test_supported_says_at_least_the_margin():
    verdict = judged()
    assert verdict.verdict == SUPPORTED and verdict.interval["low"] > 0.01 and verdict.interval_level == 0.95
    low, high = verdict.interval["low"], verdict.interval["high"]
    size = f"0.0250 [{low:.4f}, {high:.4f}] in accuracy over 8 seeds"
    assert verdict.sentence == f"new is better than old by {size}: at least the margin of 0.01."
    assert verdict.seeds_needed is None and verdict.rule == VERSION


def test_refuted_is_the_same_the_other_way_round():
    verdict, mirrored = judged(networks(OLD, NEW)), judged()
    assert verdict.verdict == REFUTED and "The claim is refuted: old is better than new by 0.0250" in verdict.sentence
    assert (verdict.interval["low"], verdict.interval["high"]) == pytest.approx(
        (-mirrored.interval["high"], -mirrored.interval["low"])
    )


def test_different_shows_a_direction_and_no_size():
    for first, second in ((NEW, OLD), (OLD, NEW)):
        verdict = judged(networks(first, second), margin=0.0245)
        assert verdict.verdict == DIFFERENT and verdict.holm_p < 0.05 < verdict.holm_margin_p
        better = "new is better than old" if first is NEW else "old is better than new"
        assert verdict.sentence.startswith(f"{better} by 0.0250")
        assert verdict.sentence.endswith("whether by the margin of 0.0245 is not shown.")


def test_equivalent_although_a_direction_is_shown_as_well():
    verdict = judged(margin=0.04)
    assert verdict.verdict == EQUIVALENT and verdict.holm_p < 0.05 and verdict.interval_level == 0.9
    assert "differ by less than 0.04 either way (+0.0250 [+0.02" in verdict.sentence


def test_less_is_better_turns_the_difference_round():
    loss = dataclasses.replace(COMPARISON, metric="loss", higher_is_better=False)
    (verdict,) = judge([loss], [networks(OLD, NEW)], 0.01)
    assert verdict.verdict == SUPPORTED and verdict.mean == pytest.approx(0.025)
    assert list(verdict.differences.values()) == pytest.approx([np.mean(NEW) - score for score in OLD])


@pytest.mark.parametrize("kind", [NETWORKS, PAIRS, ONE_FIGURE])
def test_the_word_says_where_the_interval_lies(kind):
    """Of random scores, rounded so that differences tie, by each kind of test, alone and beside two others."""
    rng, met = np.random.default_rng(4), set()
    for _ in range(80):
        n, center = int(rng.integers(4, 9)), rng.choice([0, 0.004, 0.01, 0.02, -0.02])
        measured = []
        for _ in range(3):
            first = np.round(0.8 + center + rng.normal(0, 0.004, n), 3)
            second = np.round(0.8 + rng.normal(0, 0.004, n), 3)
            control = Side([0.8]) if kind == ONE_FIGURE else side(second)
            measured.append(Measured(kind, side(first), control, Items(0.0002, 5000, 5000, 2000)))
        for verdict in (*judge([COMPARISON], measured[:1], 0.01), *judge([COMPARISON] * 3, measured, 0.01)):
            low, high = (
                end if verdict.interval[name] is None else verdict.interval[name]
                for name, end in (("low", -math.inf), ("high", math.inf))
            )
            met.add(verdict.verdict)
            place = {
                SUPPORTED: low > 0.01 + NEAR,
                REFUTED: high < -0.01 - NEAR,
                EQUIVALENT: low > -0.01 and high < 0.01,
                DIFFERENT: (low > NEAR or high < -NEAR) and not (low > 0.01 + NEAR or high < -0.01 - NEAR),
                INCONCLUSIVE: low <= NEAR and high >= -NEAR,
            }
            assert place[verdict.verdict], (verdict.verdict, low, high, verdict.scores)
    assert met == set(WORDS)


def test_a_comparison_may_name_its_own_margin():
    own = dataclasses.replace(COMPARISON, equivalence_margin=0.05)
    wide, narrow = judge([own, COMPARISON], [networks()] * 2, 0.01)
    assert (wide.verdict, narrow.verdict) == (EQUIVALENT, SUPPORTED)
    assert wide.as_dict()["equivalence_margin"] == 0.05


def test_the_sides_may_have_different_seeds():
    verdict = judged(networks(NEW[:5], OLD))
    assert verdict.verdict == SUPPORTED and "over 5 and 8 seeds" in verdict.sentence
    assert [len(verdict.seeds[name]) for name in ("treatment", "control")] == [5, 8]
    assert list(verdict.differences) == list(range(10, 15))


def test_pairs_keep_what_both_sides_share():
    """A spread that both readings of a network have is no spread of their difference."""
    common = np.linspace(0, 0.2, 8)
    first, second = (side((np.array(scores) + common).tolist()) for scores in (NEW, OLD))
    assert judged(Measured(PAIRS, first, second, ITEMS)).verdict == SUPPORTED
    assert judged(Measured(NETWORKS, first, second, ITEMS)).verdict == INCONCLUSIVE


def test_one_figure_is_taken_as_exact():
    verdict = judged(Measured(ONE_FIGURE, side(NEW), Side([0.8]), ITEMS))
    assert verdict.verdict == SUPPORTED and verdict.sentence.endswith("old is one figure, taken as exact.")
    assert verdict.p == 2 / 2**8 and list(verdict.differences.values()) == pytest.approx([score - 0.8 for score in NEW])
    turned = judged(Measured(ONE_FIGURE, Side([0.8]), side(NEW), ITEMS))
    assert turned.verdict == REFUTED and "new is one figure" in turned.sentence
    assert list(turned.differences.values()) == pytest.approx([0.8 - score for score in NEW])


def test_holm_leaves_alpha_to_those_that_have_not_shown_their_margin():
    """Beside one that shows its margin a comparison has all of alpha, and half of it beside a direction alone."""
    weak = networks([score + 0.0026 for score in OLD[:6]], OLD[:6], Items(0.0, 10_000, 10_000))
    alone = judge([COMPARISON], [weak], 0.002)[0]
    assert alone.verdict == DIFFERENT and 0.025 < alone.p < 0.05
    beside_supported = judge([COMPARISON] * 2, [weak, networks()], 0.002)
    assert [verdict.verdict for verdict in beside_supported] == [DIFFERENT, SUPPORTED]
    assert beside_supported[0].level == 0.05 and beside_supported[1].level == 0.025
    wide = dataclasses.replace(COMPARISON, equivalence_margin=0.0249)
    beside_different = judge([COMPARISON, wide], [weak, networks()], 0.002)
    assert [verdict.verdict for verdict in beside_different] == [INCONCLUSIVE, DIFFERENT]
    assert {verdict.level for verdict in beside_different} == {0.025}
    assert "after Holm's correction" in beside_different[0].sentence


@pytest.mark.parametrize("other", [None, networks(flags=["Suspiciously perfect: new."])])
def test_what_was_not_measured_or_is_flagged_counts_and_passes_nothing_on(other):
    first, second = judge([COMPARISON] * 2, [networks(), other], 0.01)
    assert first.level == 0.025 and first.verdict == SUPPORTED
    assert second.verdict == INCONCLUSIVE and second.level in (None, 0.05)
    assert ("Not measured" if other is None else "Suspiciously perfect") in second.sentence
    assert judge([COMPARISON] * 2, [networks(NEW[:4], OLD[:4]), other], 0.01)[0].verdict == INCONCLUSIVE


def test_equivalence_is_corrected_over_the_comparisons():
    same = networks([score + 0.0001 for score in OLD[:4]], OLD[:4], Items(0.0, 10_000, 10_000))
    assert judged(same).verdict == EQUIVALENT
    many = judge([COMPARISON] * 4, [same] * 4, 0.01)
    assert {verdict.verdict for verdict in many} == {INCONCLUSIVE}
    assert many[0].holm_equivalence_p == 4 * many[0].equivalence_p


@pytest.mark.parametrize(
    ("seeds", "kind", "least", "smallest"),
    [(3, NETWORKS, 4, "0.1"), (1, NETWORKS, 4, "1"), (5, ONE_FIGURE, 6, "0.0625")],
)
def test_few_seeds_decide_no_direction(seeds, kind, least, smallest):
    control = side(OLD[:seeds]) if kind == NETWORKS else Side([0.8])
    verdict = judged(Measured(kind, side(NEW[:seeds]), control, ITEMS))
    assert verdict.verdict == INCONCLUSIVE and verdict.least_seeds == least and verdict.interval["low"] is None
    assert f"no p can be below {smallest}: a direction needs at least {least} seeds" in verdict.sentence
    assert (verdict.seeds_needed is None) == (seeds == 1)


def test_the_least_seeds_are_enough():
    assert judged(networks(NEW[:4], OLD[:4], Items(0.0, 10_000, 10_000)), margin=0.001).verdict != INCONCLUSIVE
    one_figure = Measured(ONE_FIGURE, side(NEW[:6]), Side([0.8]), ITEMS)
    assert judged(one_figure).verdict == SUPPORTED


def test_inconclusive_says_how_many_seeds():
    verdict = judged(networks([0.80, 0.85, 0.82, 0.86], [0.81, 0.83, 0.79, 0.80]))
    assert verdict.verdict == INCONCLUSIVE and verdict.seeds_needed > 4
    assert f"a new experiment with {verdict.seeds_needed} seeds of each side would show" in verdict.sentence
    turned = judged(networks([0.81, 0.83, 0.79, 0.80], [0.80, 0.85, 0.82, 0.86]))
    assert turned.sentence.startswith("old is better than new by 0.0250")
    assert judged(networks(OLD, OLD[::-1]), margin=0.0001).sentence.startswith("new is level with old")


def test_test_items_are_the_second_analysis():
    """The same seeds, on items whose choice alone moves the difference by half of itself."""
    verdict = judged(networks(items=Items(0.015, 200, 200, 2000)))
    assert verdict.verdict == INCONCLUSIVE and verdict.p < 0.05 < verdict.p_items
    assert "The two analyses disagree" in verdict.sentence
    assert verdict.interval["low"] == verdict.over_seeds_and_items["low"] < verdict.over_seeds["low"]
    assert "groups" not in verdict.method and "200 items" in verdict.method
    assert "20 groups of 200 items" in judged(networks(items=Items(0.001, 20, 200, 2000))).method


def test_an_interval_ends_at_the_largest_difference_that_the_metric_can_have():
    few = networks([0.0, 1.0, 0.1], [0.9, 0.8, 1.0])
    (wide,) = judge([COMPARISON], [few], 0.01)
    (verdict,) = judge([dataclasses.replace(COMPARISON, span=1.0)], [few], 0.01)
    assert wide.over_seeds_and_items["low"] < -1 == verdict.over_seeds_and_items["low"]
    assert verdict.over_seeds_and_items["high"] == wide.over_seeds_and_items["high"] < 1
    assert (verdict.verdict, verdict.p) == (wide.verdict, wide.p) and verdict.as_dict()["span"] == 1.0
    # Where none ends there the verdict is as without.
    assert "span" not in judge([dataclasses.replace(COMPARISON, span=1.0)], [networks()], 0.01)[0].as_dict()
    (again,) = judge_again([json.loads(json.dumps(verdict.as_dict()))])
    assert again.as_dict() == verdict.as_dict()


def test_failing_seeds_are_named_with_the_robust_estimate():
    fallen = [*NEW[:7], 0.5]
    verdict = judged(networks(fallen, OLD))
    assert verdict.failing == {"treatment": [17], "control": []}
    assert "Caution: 1 of 8 seeds of new is far below its median." in verdict.sentence
    assert verdict.mean < 0 < verdict.robust_mean == pytest.approx(0.025, abs=0.001)
    assert "+0.0" in verdict.outliers[0] and "Hodges-Lehmann" in verdict.outliers[0]
    above = judged(networks([*NEW[:7], 0.99], OLD))
    assert above.failing["treatment"] == [] and "1 of 8 seeds of new is far above its median" in above.outliers[0]
    both = judged(networks([*NEW[:6], 0.5, 0.5], OLD))
    assert both.failing["treatment"] == [16, 17] and "2 of 8 seeds of new are far below its" in both.outliers[0]
    # Of a loss the seeds with the highest values failed.
    loss = dataclasses.replace(COMPARISON, metric="loss", higher_is_better=False)
    assert judge([loss], [networks([*NEW[:7], 0.99], OLD)], 0.01)[0].failing["treatment"] == [17]
    assert judged().outliers == []
    # Of small scores it has the digits that the margin asks for, as the difference has.
    small = judge([COMPARISON], [networks(*(np.array(scores) / 1e4 for scores in (fallen, OLD)))], 1e-6)[0]
    assert "difference is +0.0000024 " in small.outliers[0]
    level = judge([COMPARISON], [networks([8e-6, 7e-6, 9e-6, 7e-6], [5e-6, 4e-6, 9e-6, 7e-6])], 1e-6)[0]
    assert level.verdict == INCONCLUSIVE and level.sentence.startswith("new is better than old by 0.0000015")


def test_skewed_seeds_are_named():
    skewed = [0.8 - 0.0001 * 2**k for k in range(12)]
    verdict = judged(networks(skewed, OLD), margin=0.2)
    assert verdict.outliers and "the seeds of new are skewed" in verdict.outliers[0]


def test_a_second_look_has_half_of_alpha():
    four = networks(NEW[:4], OLD[:4], Items(0.0, 10_000, 10_000))
    assert judged(four, margin=0.001).verdict == SUPPORTED
    first = judged(four, margin=0.001, look=1)
    assert first.verdict == INCONCLUSIVE and first.least_seeds == 5 and first.level == 0.025
    assert "This is look 1 of the 2 that were declared; each has half of alpha." in first.sentence
    assert judged(networks(), look=2).verdict == SUPPORTED
    plan = {"seeds": [1, 2, 3], "second_look": 6}
    assert which_look(plan) == 1 and which_look({**plan, "seeds": range(6)}) == 2 and which_look({"seeds": []}) is None


def test_cautions_and_earlier_reads_stand_beside_the_verdict():
    verdict = judged(networks(cautions=["new was still learning."], reads=EarlierReads(2, 0, 1)))
    assert verdict.verdict == SUPPORTED and "Caution: new was still learning." in verdict.sentence
    assert verdict.sentence.endswith(EarlierReads(2, 0, 1).sentence)
    assert (verdict.earlier_reads, verdict.other_version_reads, verdict.related_reads) == (2, 0, 1)
    assert "read before" not in judged().sentence


@pytest.mark.parametrize(
    ("changes", "sides", "baseline"),
    [
        ({}, ["new", "old"], None),
        ({"control": "linear", "baseline": "linear"}, ["new"], "linear"),
        ({"control": "a paper", "reference": 0.9}, ["new"], None),
    ],
)
def test_the_sides_that_are_networks_and_the_one_that_is_a_baseline(changes, sides, baseline):
    comparison = dataclasses.replace(COMPARISON, **changes)
    assert (comparison.networks, comparison.baseline) == (sides, baseline)
    values = comparison.as_dict()
    assert values["equivalence_margin"] is None and values.get("reference") == comparison.reference
    assert ("reference" in values) == (comparison.reference is not None)
    (verdict,) = judge([comparison], [None], 0.01)
    lacks = "new and old have not both a finished seed" if not changes else "new has no finished seed."
    assert lacks in verdict.sentence and verdict.kind == (NETWORKS if not changes else ONE_FIGURE)
    assert verdict.as_dict()["interval"] is None


def test_equal_seeds_on_both_sides_differ_by_the_point():
    verdict = judged(networks([0.82] * 8, [0.80] * 8, Items(0.0, 10_000, 10_000)))
    assert verdict.verdict == SUPPORTED and verdict.mean == pytest.approx(0.02)
    assert judged(networks([0.8] * 8, [0.8] * 8, Items(0.0, 10_000, 10_000))).verdict == EQUIVALENT


def test_the_rule_names_every_word():
    assert all(f"- {word}:" in RULE for word in WORDS)


def test_a_verdict_is_flat_values_of_json():
    values = judged().as_dict()
    assert values["claim"] == "New beats old." and "comparison" not in values
    assert values["scores"] == {"treatment": NEW, "control": OLD} and values["rule"] == VERSION
    assert (values["item_deviation"], values["items"], values["resamples"]) == (0.0005, 10_000, 2000)
    assert json.loads(json.dumps(values, allow_nan=False))["interval"] == values["interval"]


def test_a_small_margin_is_told_with_more_digits():
    small = judged(networks([score / 1000 for score in NEW], [score / 1000 for score in OLD], Items()), margin=1e-5)
    assert small.verdict == SUPPORTED and "by 0.000025 [0.0000" in small.sentence


def test_cross_validated_seeds_have_the_variance_of_nadeau_and_bengio():
    items = Items(0.0, 10_000, 10_000, 2000)
    plain, corrected = (judged(networks(items=items, test_to_train=share)) for share in (0.0, 1 / 3))
    n, both = len(NEW), np.array([NEW, OLD]).var(axis=1, ddof=1)

    def half_width(verdict) -> float:
        return verdict.over_seeds_and_items["high"] - verdict.mean

    # Welch's degrees of freedom depend on the shares of both sides alone, so that the widths are as the errors.
    assert half_width(corrected) / half_width(plain) == pytest.approx(math.sqrt((1 / n + 1 / 3) / (1 / n)))
    assert of_seeds(np.array(NEW), 1 / 3) == (pytest.approx(both[0] * (1 / n + 1 / 3)), n - 1)
    # The first analysis is of these rows, which all draws of the folds share.
    assert corrected.over_seeds == plain.over_seeds and corrected.p == plain.p and corrected.p_items > plain.p_items
    assert "Cross-validated" in corrected.sentence and "folds share" in corrected.method
    assert corrected.as_dict()["test_to_train"] == 1 / 3 and "test_to_train" not in plain.as_dict()


def test_the_rows_that_folds_share_bound_what_more_seeds_can_show():
    close = [score - 0.024 for score in NEW]
    plain, corrected = (judged(networks(close, test_to_train=share), margin=0.001) for share in (0.0, 1.0))
    assert plain.verdict == corrected.verdict == INCONCLUSIVE
    assert corrected.seeds_needed is None or corrected.seeds_needed > plain.seeds_needed
