"""What a design can decide: against simulation, by hand, and on the numbers of a tuning."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from evaluation.power import (
    ITEM_SHARE,
    ITEM_SHARE_OF_A_BASELINE,
    Design,
    reach,
    reachable,
    seeds_needed,
    tuned_deviation,
    tuned_score,
)
from evaluation.statistics import holm, paired_interval, sign_flip_p
from evaluation.verdicts import Comparison

DESIGN = Design("swish", "densenet-swish", "densenet-relu", 8, 1, 0.01, spread=0.01)


def test_the_smallest_detectable_difference_is_found_as_often_as_said():
    """8 normal seeds whose true difference is the one named: the rule's test over seeds finds it in 80 %."""
    found = reach(DESIGN)
    rng = np.random.default_rng(0)
    draws = rng.normal(found.smallest_detectable, DESIGN.spread, (1500, 8))
    supported = [sign_flip_p(one) < 0.05 and paired_interval(one).mean >= DESIGN.margin for one in draws]
    assert np.mean(supported) == pytest.approx(0.8, abs=0.05)
    # A smaller margin does not bind: the test's quantile and that of the power remain.
    quantiles = stats.t.ppf(0.975, 7) + stats.t.ppf(0.8, 7)
    free = reach(dataclasses.replace(DESIGN, margin=0.001))
    assert free.smallest_detectable == pytest.approx(quantiles * DESIGN.spread / math.sqrt(8))
    assert found.supported and found.refuted and not found.warnings


def test_the_power_of_equivalence_is_that_of_the_two_one_sided_tests():
    found = reach(DESIGN)
    rng = np.random.default_rng(1)
    draws = rng.normal(0, DESIGN.spread, (20_000, 8))
    half = stats.t.ppf(0.95, 7) * draws.std(axis=1, ddof=1) / math.sqrt(8)
    inside = np.abs(draws.mean(axis=1)) + half < DESIGN.margin
    assert found.power_of_equivalence == pytest.approx(inside.mean(), abs=0.06)
    assert found.equivalent == (found.power_of_equivalence >= 0.5)


def test_a_true_difference_of_the_margin_has_even_odds_at_most():
    assert reach(dataclasses.replace(DESIGN, margin=0.03)).power_at_margin == pytest.approx(0.5)
    assert reach(dataclasses.replace(DESIGN, margin=0.005)).power_at_margin < 0.2


def test_a_claim_without_room_is_warned_of():
    """ReLU errs on 2 of 266: .0075 is all that can be gained, and .02 is asked for."""
    found = reach(dataclasses.replace(DESIGN, margin=0.02, room=2 / 266))
    assert not found.supported and found.refuted and found.equivalent
    (warning,) = found.warnings
    assert "cannot be supported" in warning and "0.0075" in warning and "0.0200" in warning
    narrow = reach(dataclasses.replace(DESIGN, room=0.0105))
    assert narrow.supported and "at most 0.0105 can be gained over densenet-relu" in narrow.warnings[0]


def test_too_few_seeds_are_warned_of():
    found = reach(dataclasses.replace(DESIGN, seeds=5, comparisons=3, room=0.0))
    assert not (found.supported or found.refuted or found.equivalent)
    assert found.power_at_margin == found.power_of_equivalence == 0
    assert "at least 7 seeds" in found.warnings[0] and "cannot be supported" not in found.warnings[1]
    assert "5 seeds would have even odds" in reach(dataclasses.replace(DESIGN, seeds=4, spread=0.0)).warnings[-1]
    # 3 / 64 is below .05: equivalence needs one seed fewer.
    assert reach(dataclasses.replace(DESIGN, seeds=6, comparisons=3, spread=0.001)).equivalent


@pytest.mark.parametrize("comparisons", [1, 3])
def test_equivalence_out_of_reach_says_what_would_reach_it(comparisons):
    design = dataclasses.replace(DESIGN, spread=0.02, comparisons=comparisons)
    wide = reach(design)
    assert not wide.equivalent and wide.power_of_equivalence >= 0
    needed = int(wide.warnings[-1].split(": ")[-1].split()[0])
    assert reach(dataclasses.replace(design, seeds=needed)).equivalent
    assert not reach(dataclasses.replace(design, seeds=needed - 1)).equivalent
    items = reach(dataclasses.replace(DESIGN, item_deviation=0.008))
    assert "more test items" in items.warnings[-1]


def test_more_comparisons_need_a_larger_difference():
    assert reach(dataclasses.replace(DESIGN, comparisons=3)).smallest_detectable > reach(DESIGN).smallest_detectable
    assert holm([0.02, 1, 1])[0] == pytest.approx(0.06)


def test_an_unknown_spread_is_reported():
    found = reach(dataclasses.replace(DESIGN, spread=None, room=0.005))
    assert found.smallest_detectable is None and "spread between seeds is not known" in found.sentences[0]
    assert not found.supported and found.refuted
    (warning,) = found.warnings
    assert "cannot be supported" in warning
    for room in (None, 0.02):
        found = reach(dataclasses.replace(DESIGN, spread=None, room=room))
        assert found.supported and not found.warnings
    few = reach(dataclasses.replace(DESIGN, spread=None, seeds=5))
    assert (few.supported, few.refuted, few.equivalent) == (False, False, True)


def test_more_seeds_than_can_be_trained_are_not_asked_for():
    needed, sentence = seeds_needed(0.01, 1.0, 0.0, 0.01, (0.05, 0.05), (6, 5), 6)
    assert needed is None and "more than 10,000 seeds" in sentence
    # Nor a hundred times the test items.
    needed, sentence = seeds_needed(0.0099, 0.01, 0.01, 0.01, (0.05, 0.05), (6, 5), 6)
    assert needed is None and "too near to the margin" in sentence


def trial(mean, deviation):
    return {"validation": {"accuracy": {"mean": mean, "deviation": deviation}}}


TUNING = {
    "variants": {
        "relu/learning_rate=0.1": trial(0.96, 0.003),
        "relu/learning_rate=0.2": trial(0.98, 0.004),
        "swish-0.1": trial(0.95, 0.012),
        "swish-0.2": trial(None, None),
        "swish-beta-0.1": trial(0.99, 0.1),
    },
    "tuned": {"relu": {"trials": ["relu/learning_rate=0.1", "relu/learning_rate=0.2"]}},
    "baselines": {"imdb": {"nb_svm": {}}, "digits": {"linear": {"validation": {"accuracy": 0.9}}}},
}  # fmt: skip


def test_a_tuning_gives_spread_scores_and_room():
    assert tuned_score(TUNING, "relu", "accuracy") == 0.98 and tuned_score(TUNING, "linear", "accuracy") == 0.9
    assert tuned_deviation(TUNING, "relu", "accuracy") == pytest.approx(math.sqrt((0.003**2 + 0.004**2) / 2))
    # swish-beta-0.1 is no trial of swish.
    assert tuned_deviation(TUNING, "swish", "accuracy") == 0.012 and tuned_score(TUNING, "swish", "accuracy") == 0.95
    assert tuned_deviation(TUNING, "gelu", "accuracy") is None and tuned_score(TUNING, "gelu", "accuracy") is None
    comparisons = [
        Comparison("swish", "c", "s", "swish", "relu", "accuracy"),
        Comparison("linear", "c", "s", "relu", "linear", "accuracy", equivalence_margin=0.05),
    ]
    rows = {"swish": 266, "linear": 266}
    first, second = reachable(comparisons, 8, 0.01, 0.05, rows, [TUNING])
    spread = math.hypot(0.012, math.sqrt((0.003**2 + 0.004**2) / 2))
    item = math.sqrt(ITEM_SHARE * (0.98 * 0.02 + 0.95 * 0.05) / 266)
    expected = reach(Design("swish", "swish", "relu", 8, 2, 0.01, 0.05, spread, item, 0.02))
    assert first.smallest_detectable == pytest.approx(expected.smallest_detectable)
    assert (first.sentences, first.warnings) == (expected.sentences, expected.warnings)
    # Of two files the first that knows a side counts.
    assert reachable(comparisons, 8, 0.01, 0.05, rows, [{"variants": {}}, TUNING]) == [first, second]
    item = math.sqrt(ITEM_SHARE_OF_A_BASELINE * (0.98 * 0.02 + 0.9 * 0.1) / 266)
    spread = math.sqrt((0.003**2 + 0.004**2) / 2)
    assert second == reach(Design("linear", "relu", "linear", 8, 2, 0.05, 0.05, spread, item, 0.1))
    named = reachable(comparisons[:1], 8, 0.01, 0.05, {"swish": 266}, spread=0.02)[0]
    assert named == reach(Design("swish", "swish", "relu", 8, 1, 0.01, 0.05, 0.02))


def test_a_published_figure_has_no_spread_and_leaves_room_below_one():
    comparison = Comparison("paper", "c", "s", "swish", "reference 0.97", "accuracy", reference=0.97)
    (found,) = reachable([comparison], 8, 0.01, 0.05, {"paper": 266}, [TUNING])
    spread, item = tuned_deviation(TUNING, "swish", "accuracy"), math.sqrt(0.95 * 0.05 / 266)
    expected = reach(Design("paper", "swish", "reference 0.97", 8, 1, 0.01, 0.05, spread, item, 1 - 0.97))
    assert found.smallest_detectable == pytest.approx(expected.smallest_detectable)
    assert found.sentences == expected.sentences


def test_less_of_a_loss_is_better():
    """The best trial has the lowest, and all of it can be gained."""
    losses = [{"validation": {"loss": {"mean": mean, "deviation": 0.01}}} for mean in (2.5, 2.3)]
    tuning = {"variants": {"relu-0.1": losses[0], "relu-0.2": losses[1], "swish": losses[0]}}
    assert tuned_score(tuning, "relu", "loss") == 2.3
    comparison = Comparison("swish", "c", "s", "swish", "relu", "loss", equivalence_margin=2.4)
    (found,) = reachable([comparison], 8, 0.01, 0.05, {"swish": 266}, [tuning])
    assert not found.supported and "at most 2.3000 can be gained" in found.warnings[0]
