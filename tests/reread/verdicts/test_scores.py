"""Plain scores: arms, seeds and items are checked, and the verdict is the one of the rule."""

import dataclasses
import math

import numpy as np
import pytest

from reread.storage.errors import InputError
from reread.verdicts.resampling import item_spread_of, mean_of
from reread.verdicts.rule import NETWORKS, ONE_FIGURE, PAIRS, SUPPORTED, Comparison, Measured, Side, judge
from reread.verdicts.scores import OVER_ITEMS, OVER_SEEDS, Claim, Rows, as_ratio, collect, judge_claims, measure

OLD = [0.800, 0.803, 0.798, 0.801, 0.799, 0.802, 0.800, 0.797]
NEW = [0.825, 0.828, 0.823, 0.827, 0.824, 0.826, 0.822, 0.825]
CLAIM = Claim("c", "New beats old.", "Author 2020", "new", "old", "accuracy", 0.01)


def rows(metric="accuracy", **arms) -> Rows:
    """Rows of arms, each a list of scores of the seeds 0, 1, ..."""
    each = [(arm, seed, score) for arm, scores in arms.items() for seed, score in enumerate(scores)]
    return Rows(metric, *map(list, zip(*each, strict=True)))


def item_rows(arms: dict[str, np.ndarray], groups: np.ndarray | None = None) -> Rows:
    """Rows of items: of each arm float [n, m]."""
    each = [
        (arm, seed, score, f"q{item}", None if groups is None else groups[item])
        for arm, scores in arms.items()
        for seed, of_seed in enumerate(scores)
        for item, score in enumerate(of_seed)
    ]
    arm, seed, score, item, group = map(list, zip(*each, strict=True))
    return Rows("accuracy", arm, seed, score, item, None if groups is None else group)


def judged(claim=CLAIM, table=None, **others):
    scores = collect(table or rows(new=NEW, old=OLD))
    return judge_claims([claim], {"accuracy": scores}, **others)[0]


def test_the_verdict_is_the_one_of_the_rule():
    comparison = Comparison("c", "New beats old.", "Author 2020", "new", "old", "accuracy", 0.01)
    measured = Measured(NETWORKS, Side(NEW, range(8)), Side(OLD, range(8)))
    assert judged().as_dict() == judge([comparison], [measured], 0.01)[0].as_dict()
    assert judged().verdict == SUPPORTED


def test_claims_that_are_named_together_share_alpha():
    scores = {"accuracy": collect(rows(new=NEW, old=OLD, other=OLD[::-1]))}
    claims = [CLAIM, dataclasses.replace(CLAIM, name="d", treatment="other")]
    assert judge_claims(claims, scores)[0].level == 0.025


def test_rows_of_items_bring_the_second_analysis():
    """Its deviation is that of the bootstrap with all seeds' items in one order, whatever the order of the rows."""
    rng = np.random.default_rng(0)
    hard = rng.random(40)
    arms = {name: (rng.random((4, 40)) > hard * share).astype(float) for name, share in (("new", 0.5), ("old", 0.8))}
    table = item_rows(arms)
    order = rng.permutation(len(table.arm))
    columns = (table.arm, table.seed, table.score, table.item)
    shuffled = Rows("accuracy", *([column[row] for row in order] for column in columns))
    scores = collect(shuffled)
    assert scores.analyses == [OVER_SEEDS, OVER_ITEMS] and collect(rows(new=NEW)).analyses == [OVER_SEEDS]
    expected = item_spread_of(*([mean_of(row) for row in arms[name]] for name in ("new", "old")), 40)
    items = measure(CLAIM, scores).items
    assert (items.units, items.count) == (40, 40) and items.deviation == pytest.approx(expected.deviation, rel=0.1)
    in_order = measure(CLAIM, collect(table))
    assert in_order.items == expected and in_order.treatment.scores == pytest.approx(arms["new"].mean(axis=1))
    assert "40 items" in judged(table=table).method


def test_items_of_a_group_are_drawn_together():
    rng = np.random.default_rng(0)
    groups = np.arange(40) // 4
    by_group = rng.random((2, 4, 10)) > 0.5
    arms = {name: array.repeat(4, axis=1).astype(float) for name, array in zip(("new", "old"), by_group, strict=True)}
    alone, together = (measure(CLAIM, collect(item_rows(arms, array))).items for array in (None, groups))
    assert (together.units, together.count) == (10, 40)
    assert together.deviation > 1.5 * alone.deviation
    table = item_rows(arms, groups)
    with pytest.raises(InputError, match="item 'q1' is in the groups"):
        collect(dataclasses.replace(table, group=[*table.group[:41], 7, *table.group[42:]]))


def test_a_ratio_compares_logarithms():
    claim = dataclasses.replace(CLAIM, margin=math.log(1.05), ratio=True, higher_is_better=False)
    verdict = judged(claim, rows(new=[0.5, 0.51, 0.49, 0.5], old=[1.0, 1.02, 0.98, 1.01]))
    assert verdict.verdict == SUPPORTED and "new is better than old by a factor of 2.00" in verdict.sentence
    assert "in accuracy over 4 seeds: at least the margin of a factor of 1.05." in verdict.sentence
    assert verdict.scores["treatment"] == pytest.approx(np.log([0.5, 0.51, 0.49, 0.5]))
    ratio = as_ratio(verdict.as_dict())
    assert ratio["mean"] == pytest.approx(2.0, rel=0.01) and ratio["margin"] == pytest.approx(1.05)
    assert ratio["low"] < ratio["mean"] < ratio["high"]
    with pytest.raises(InputError, match="'new'|new has a score of 0 "):
        judged(claim, rows(new=[0.0, 1.0], old=[1.0, 1.0]))


def test_the_items_of_a_ratio_are_resampled_as_ratios():
    arms = {"new": np.full((4, 50), 2.0), "old": np.tile(np.arange(1.0, 51.0), (4, 1))}
    deviation = measure(dataclasses.replace(CLAIM, ratio=True), collect(item_rows(arms))).items.deviation
    mean, error = np.arange(1.0, 51.0).mean(), np.arange(1.0, 51.0).std() / math.sqrt(50)
    assert deviation == pytest.approx(error / mean, rel=0.1)
    # Two errors of 50 items: every eighth choice of the items has none.
    rare = item_rows({name: np.tile(np.arange(50) < 2, (4, 1)).astype(float) for name in ("new", "old")})
    with pytest.raises(InputError, match="some choices of the test items score 0 in accuracy: a margin in percent"):
        measure(dataclasses.replace(CLAIM, ratio=True), collect(rare))


def test_a_figure_in_place_of_a_control():
    claim = dataclasses.replace(CLAIM, control="the paper", reference=0.80)
    verdict = judged(claim, rows(new=NEW))
    assert verdict.kind == ONE_FIGURE and verdict.verdict == SUPPORTED and "the paper is one figure" in verdict.sentence
    assert verdict.seeds["control"] == [] and verdict.scores["control"] == [0.8]


def test_pairs_are_in_the_order_of_their_seeds():
    paired = dataclasses.replace(CLAIM, paired=True)
    shuffled = Rows("accuracy", ["new"] * 8 + ["old"] * 8, [*range(8), *range(7, -1, -1)], [*NEW, *OLD[::-1]])
    verdict = judged(paired, shuffled)
    assert verdict.kind == PAIRS and list(verdict.differences.values()) == pytest.approx(np.subtract(NEW, OLD))


def test_seeds_are_numbers_where_all_of_them_are():
    def seeds_of(*seeds):
        return list(collect(Rows("accuracy", ["a"] * len(seeds), seeds, [0.5] * len(seeds))).arms["a"])

    assert seeds_of("10", "9", "8") == [8, 9, 10] and seeds_of("1.0", 0) == [0, 1] and seeds_of("1", "b") == ["1", "b"]
    assert seeds_of("17325512145678903", 17325512145678904) == [17325512145678903, 17325512145678904]
    assert seeds_of("1.5", "2") == ["1.5", "2"] and seeds_of("2e1", np.int64(3)) == [3, 20]


@pytest.mark.parametrize(
    ("changes", "table", "said"),
    [
        ({}, Rows("accuracy", ["new", "new"], [1, "1"], [0.1, 0.2]), "seed 1 of arm 'new' has two scores"),
        ({"treatment": "nwe"}, None, "no arm 'nwe' with accuracy: did you mean 'new'"),
        ({}, rows(new=NEW[:1], old=OLD), r"arm 'new' has one seed \(0\).*needs 4 per arm"),
        ({"reference": 0.8}, rows(new=NEW[:1]), "needs 6 per arm"),
        ({"control": "new"}, None, "compares arm 'new' with itself"),
        ({"margin": 5e-11}, None, "the margin of accuracy is 5e-11, and scores are judged with 10 decimals"),
        ({"paired": True}, rows(new=NEW, old=OLD[:7]), "seed 7 is only in arm 'new': pairs need"),
        ({"paired": True}, rows(new=NEW[:7], old=OLD), "seed 7 is only in arm 'old': pairs need"),
        ({}, Rows("accuracy", ["new"] * 3, [0] * 3, [1, 0, 1], ["a", "b", "a"]), "item 'a' of arm 'new', seed 0 has"),
        ({}, Rows("accuracy", ["new"] * 3, [0, 0, 1], [1, 0, 1], ["a", "b", "a"]), "seed 0 of arm 'new' has item 'b'"),
        ({}, Rows("accuracy", ["new"], [0], [1], ["a"]), "has one item"),
        ({}, Rows("accuracy", [], [], []), "no score of accuracy"),
    ],
)
def test_scores_that_cannot_be_judged_are_one_line(changes, table, said):
    with pytest.raises(InputError, match=said) as raised:
        judged(dataclasses.replace(CLAIM, **changes), table)
    assert "\n" not in str(raised.value)


def test_an_arm_that_is_perfect_on_every_seed_has_no_verdict():
    verdict = judged(table=rows(new=[1.0] * 8, old=OLD))
    assert verdict.verdict == "inconclusive" and "Suspiciously perfect: new" in verdict.sentence
    error = dataclasses.replace(CLAIM, higher_is_better=False)
    assert judged(error, rows(new=[1.0] * 8, old=OLD)).verdict == "refuted"


def test_cautions_and_earlier_reads_stand_in_the_sentence():
    table = dataclasses.replace(rows(new=NEW, old=OLD), cautions=["drift."])
    sentence = judged(table=table, cautions=["tuned on test."], earlier_reads=2, look=1).sentence
    assert all(part in sentence for part in ("Caution: drift.", "Caution: tuned on test.", "2 times", "look 1"))
