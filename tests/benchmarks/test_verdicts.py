"""The error rates of the rule, from invented scores to words, and the figures by the command, with few draws."""

import itertools
import json
import math

import pytest

from benchmarks import verdicts
from benchmarks.verdicts import NARROW, WIDE, World, experiments, looks, power, rates
from reread.verdicts.rule import words

DRAWS = 300
BOUND = 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / DRAWS)


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
    monkeypatch.setattr(verdicts, "EXACT", 1.0)
    whole = list(experiments(world, 100))
    assert [words(experiment, 0.05) for experiment in quick] == [words(experiment, 0.05) for experiment in whole]
    assert any(fast.p < slow.p for fast, slow in zip(itertools.chain(*quick), itertools.chain(*whole), strict=True))


def test_seeds_that_are_added_until_a_direction_is_shown_cost_more_than_alpha():
    world = World("normal", 12, [0.0], NARROW)
    assert looks(world, (6, 12), 0.025, 600) <= 0.05 + 2.5 * math.sqrt(0.05 * 0.95 / 600)
    assert looks(world, (6, 8, 10, 12), 0.05, 600) > looks(world, (6, 12), 0.025, 600) + 0.02


def test_the_figures_of_every_kind_are_written(tmp_path, monkeypatch):
    path = tmp_path / "figures.json"
    for name, value in (("SEEDS", (6,)), ("COMPARISONS", (1, 3)), ("POWER_SEEDS", (6, 8))):
        monkeypatch.setattr(verdicts, name, value)
    monkeypatch.setattr("sys.argv", ["verdicts", "--draws", "20", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        verdicts.main()
    assert not ended.value.code
    figures = json.loads(path.read_text())
    places = {(row["shape"], row["seeds"], row["comparisons"]) for row in figures["rates"]}
    assert places == {(shape, 6, many) for shape in verdicts.SHAPES for many in (1, 3)}
    for row in figures["rates"]:
        assert row["direction"] <= 0.3 and row["equivalence"] <= 0.3 and row["size"] <= 0.3 and row["coverage"] > 0.8
    assert [row["item_deviation"] for row in figures["by_items"]] == list(verdicts.ITEM_DEVIATIONS)
    assert all(row["direction"] <= 0.3 for row in figures["by_items"])
    by_place = {(row["seeds"], row["comparisons"]): row for row in figures["power"]}
    assert set(by_place) == {(seeds, many) for seeds in (6, 8) for many in verdicts.POWER_COMPARISONS}
    # Pairs of six seeds show nothing with three comparisons; two samples do.
    assert by_place[6, 3]["pairs"] == 0 < by_place[6, 3]["other_items"] <= by_place[6, 3]["rule"] + 0.2
    assert by_place[8, 1]["rule"] >= by_place[8, 13]["rule"]
    assert [row["looks"] for row in figures["looks"]] == [name for name, _, _ in verdicts.LOOKS]
