"""The claims that a design can decide: against simulation, by hand, and on the numbers of a tuning."""

import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from reread.verdicts.items import Items
from reread.verdicts.power import (
    ITEM_SHARE,
    ITEM_SHARE_OF_A_BASELINE,
    Design,
    reach,
    reachable,
    seeds_needed,
    tuned_deviation,
    tuned_score,
)
from reread.verdicts.rule import (
    EQUIVALENT,
    INCONCLUSIVE,
    NETWORKS,
    SUPPORTED,
    Comparison,
    Evidence,
    Measured,
    Side,
    words,
)

DESIGN = Design("swish", "densenet-swish", "densenet-relu", 8, 1, 0.01, spread=0.01)


def drawn(difference: float, draws: int = 400) -> list[str]:
    """The words of as many experiments of DESIGN whose true difference is ``difference``."""
    rng, side = np.random.default_rng(0), DESIGN.spread / math.sqrt(2)
    comparison = Comparison("swish", "c", "s", "a", "b", "accuracy")
    outcomes = []
    for _ in range(draws):
        sides = (Side(rng.normal(mean, side, DESIGN.seeds).tolist(), range(DESIGN.seeds)) for mean in (difference, 0))
        measured = Measured(NETWORKS, *sides, Items(0.0, 10**6, 10**6))
        outcomes.append(words([Evidence(comparison, measured, DESIGN.margin, most=4000, draws=4000)], 0.05)[0][0])
    return outcomes


def test_the_differences_are_found_as_often_as_said():
    """By the functions that judge: a direction, one of at least the margin, and equivalence of no difference."""
    reached = reach(DESIGN)
    (detectable, _), (supported, _) = reached.smallest_detectable, reached.smallest_supported
    shown = np.mean([word != INCONCLUSIVE for word in drawn(detectable)])
    assert shown == pytest.approx(0.8, abs=0.1)
    assert np.mean([word == SUPPORTED for word in drawn(supported)]) == pytest.approx(0.8, abs=0.1)
    equivalent = np.mean([word == EQUIVALENT for word in drawn(0.0)])
    assert reached.power_of_equivalence[0] == pytest.approx(equivalent, abs=0.1)
    assert reached.equivalent == (equivalent >= 0.5) and reached.supported and reached.refuted
    assert supported == pytest.approx(detectable + DESIGN.margin)
    at_margin = np.mean([word in (SUPPORTED, "different") for word in drawn(DESIGN.margin)])
    assert reached.power_at_margin[0] == pytest.approx(at_margin, abs=0.1)


def test_a_spread_that_is_known_from_few_runs_gives_a_range():
    exact, known = reach(DESIGN), reach(dataclasses.replace(DESIGN, freedom=2))
    (low, high), (both, _) = known.smallest_detectable, exact.smallest_detectable
    assert low < both < high and exact.smallest_detectable == (both, both)
    # The ends of S at 80 %: chi squared of 2 degrees of freedom.
    ends = [math.sqrt(2 / stats.chi2.ppf(share, 2)) for share in (0.9, 0.1)]
    assert (low / both, high / both) == pytest.approx(ends, rel=0.02)
    assert "known from 2 degrees of freedom" in known.sentences[0] and " to " in known.sentences[0]


def test_a_claim_without_room_is_warned_of():
    """ReLU errs on 2 of 266: .0075 is all that can be gained, and .02 is asked for."""
    reached = reach(dataclasses.replace(DESIGN, margin=0.02, room=2 / 266))
    assert not reached.supported and reached.refuted
    assert "cannot be supported" in reached.warnings[0] and "0.0075" in reached.warnings[0]
    small = dataclasses.replace(DESIGN, spread=0.001)
    room = reach(small).smallest_supported[0] - 0.0001
    narrow = reach(dataclasses.replace(small, room=room))
    assert narrow.supported and f"at most {room:.4f} can be gained over densenet-relu" in narrow.warnings[0]
    assert not reach(dataclasses.replace(small, room=room + 0.0002)).warnings


def test_too_few_seeds_are_warned_of():
    reached = reach(dataclasses.replace(DESIGN, seeds=4, comparisons=3, room=0.0))
    assert not (reached.supported or reached.refuted or reached.equivalent) and reached.smallest_detectable is None
    assert "at least 5 seeds" in reached.warnings[0]
    assert not any("cannot be supported" in warning for warning in reached.warnings)
    one_figure = reach(dataclasses.replace(DESIGN, seeds=5, one_figure=True))
    assert "at least 6 seeds" in one_figure.warnings[0]


def test_equivalence_out_of_reach_says_what_would_reach_it():
    wide = reach(dataclasses.replace(DESIGN, spread=0.02))
    assert not wide.equivalent
    needed = int(wide.warnings[-1].split(": ")[-1].split()[0])
    assert needed > DESIGN.seeds
    assert reach(dataclasses.replace(DESIGN, spread=0.02, seeds=needed + 2)).power_of_equivalence[0] >= 0.4
    items = reach(dataclasses.replace(DESIGN, item_deviation=0.008))
    assert "more test items" in items.warnings[-1]


def test_more_comparisons_need_a_larger_difference():
    assert reach(dataclasses.replace(DESIGN, comparisons=3)).smallest_detectable > reach(DESIGN).smallest_detectable


def test_an_unknown_spread_is_reported():
    reached = reach(dataclasses.replace(DESIGN, spread=None, room=0.005))
    assert reached.smallest_detectable is None and "spread between seeds is not known" in reached.sentences[0]
    assert not reached.supported and reached.refuted
    # What is known comes first, then the line to write.
    assert "8 seeds and 1 comparison can show a direction (which side is better)." in reached.sentences[0]
    assert "`tuning: {spread: 0.01}`" in reached.sentences[0]
    (warning,) = reached.warnings
    assert "cannot be supported" in warning
    for room in (None, 0.02):
        reached = reach(dataclasses.replace(DESIGN, spread=None, room=room))
        assert reached.supported and not reached.warnings
    few = reach(dataclasses.replace(DESIGN, spread=None, seeds=3))
    assert (few.supported, few.refuted, few.equivalent) == (False, False, False)
    assert "3 seeds and 1 comparison can show no direction (which side is better)." in few.sentences[0]


def test_more_seeds_than_can_be_trained_are_not_asked_for():
    needed, sentence = seeds_needed(0.005, 1.0, 0.0, 0.01, (0.05, 0.05), 4, 2)
    assert needed is None and "more than 10,000 seeds" in sentence


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


def of(metric: str, baseline: str | None = None) -> Comparison:
    return Comparison("swish", "c", "s", "swish", "relu", metric, baseline=baseline)


def test_a_tuning_gives_spread_scores_and_room():
    accuracy = of("accuracy")
    assert tuned_score(TUNING, "relu", accuracy) == 0.98
    assert tuned_score(TUNING, "linear", of("accuracy", "linear")) == 0.9
    of_relu = math.sqrt((0.003**2 + 0.004**2) / 2)
    assert tuned_deviation(TUNING, "relu", "accuracy") == (pytest.approx(of_relu), 2)
    # swish-beta-0.1 is no trial of swish.
    assert tuned_deviation(TUNING, "swish", "accuracy") == (0.012, 1) and tuned_score(TUNING, "swish", accuracy) == 0.95
    assert tuned_deviation(TUNING, "gelu", "accuracy") is None and tuned_score(TUNING, "gelu", accuracy) is None
    comparisons = [
        accuracy,
        Comparison("linear", "c", "s", "relu", "linear", "accuracy", equivalence_margin=0.05, baseline="linear"),
    ]
    rows = {"swish": 266, "linear": 266}
    first, second = reachable(comparisons, 8, 0.01, 0.05, rows, [TUNING])
    spread = math.hypot(0.012, of_relu)
    freedom = spread**4 / (0.012**4 / 1 + of_relu**4 / 2)
    item = math.sqrt(ITEM_SHARE * (0.98 * 0.02 + 0.95 * 0.05) / 266)
    expected = reach(Design("swish", "swish", "relu", 8, 2, 0.01, 0.05, spread, item, 0.02, freedom))
    assert first.smallest_detectable == pytest.approx(expected.smallest_detectable)
    assert (first.sentences, first.warnings) == (expected.sentences, expected.warnings)
    # Of two files the first that knows a side counts.
    assert reachable(comparisons, 8, 0.01, 0.05, rows, [{"variants": {}}, TUNING]) == [first, second]
    item = math.sqrt(ITEM_SHARE_OF_A_BASELINE * (0.98 * 0.02 + 0.9 * 0.1) / 266)
    assert second == reach(Design("linear", "relu", "linear", 8, 2, 0.05, 0.05, of_relu, item, 0.1, 2, True))
    named = reachable(comparisons[:1], 8, 0.01, 0.05, {"swish": 266}, spread=0.02)[0]
    assert named == reach(Design("swish", "swish", "relu", 8, 1, 0.01, 0.05, 0.02))


def test_a_published_figure_has_no_spread_and_leaves_room_below_one():
    comparison = Comparison("paper", "c", "s", "swish", "reference 0.97", "accuracy", reference=0.97)
    (reached,) = reachable([comparison], 8, 0.01, 0.05, {"paper": 266}, [TUNING])
    (spread, freedom), item = tuned_deviation(TUNING, "swish", "accuracy"), math.sqrt(0.95 * 0.05 / 266)
    expected = reach(
        Design("paper", "swish", "reference 0.97", 8, 1, 0.01, 0.05, spread, item, 1 - 0.97, freedom, True)
    )
    assert reached.smallest_detectable == pytest.approx(expected.smallest_detectable)
    assert reached.sentences == expected.sentences


def test_less_of_a_loss_is_better():
    """The best trial has the lowest, and all of it can be gained."""
    losses = [{"validation": {"loss": {"mean": mean, "deviation": 0.01}}} for mean in (2.5, 2.3)]
    tuning = {"variants": {"relu-0.1": losses[0], "relu-0.2": losses[1], "swish": losses[0]}}
    comparison = Comparison("swish", "c", "s", "swish", "relu", "loss", equivalence_margin=2.4, higher_is_better=False)
    assert tuned_score(tuning, "relu", comparison) == 2.3
    (reached,) = reachable([comparison], 8, 0.01, 0.05, {"swish": 266}, [tuning])
    assert not reached.supported and "at most 2.3000 can be gained" in reached.warnings[0]


def test_cross_validation_adds_what_folds_share_and_a_baseline_has_seeds():
    simple = Comparison("simple", "c", "s", "new", "tf-idf", "accuracy", baseline="tf-idf")
    (fixed,), (folded,) = (
        reachable([simple], 6, 0.01, 0.05, {"simple": 200}, spread=0.01, folds=folds) for folds in (None, 5)
    )
    # Training rows that all seeds share leave an error of their own, and two samples of seeds need fewer of them.
    item = math.sqrt(0.01**2 * 5 / 3)
    assert folded == reach(Design("simple", "new", "tf-idf", 6, 1, 0.01, 0.05, 0.01, item))
    assert fixed == reach(Design("simple", "new", "tf-idf", 6, 1, 0.01, 0.05, 0.01, one_figure=True))
    assert folded.smallest_detectable > fixed.smallest_detectable
