"""The two-way bootstrap: each resampled metric against the metric itself, and the interval against theory."""

import math

import numpy as np
import pytest
from scipy import stats

from evaluation.bootstrap import (
    CELLS_AT_ONCE,
    TwoWay,
    item_counts,
    mean_of,
    resampled_metric,
    two_way,
    two_way_of,
)
from evaluation.metrics import (
    TUNED,
    choose_thresholds,
    comparison_metrics,
    higher_is_better,
    metric_value,
    split_metrics,
)
from evaluation.statistics import Interval, mean_interval
from storage.errors import InputError


def data_of(task: str, rows: int = 60, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    # The last class is rare: a resample may lack it, or have one row of it.
    if task == "single-label":
        labels = np.append(rng.integers(0, classes - 1, rows - 1), classes - 1)
        return rng.dirichlet(np.ones(classes), rows).astype(np.float32), labels
    labels = rng.integers(0, 2, (rows, classes), dtype=np.uint8)
    labels[:, -1] = np.arange(rows) == 0
    # Rounded, so that scores tie.
    return rng.random((rows, classes)).round(1).astype(np.float32), labels


@pytest.mark.parametrize(
    ("task", "metric"),
    [
        (task, name)
        for task in ("single-label", "multi-label")
        for name in comparison_metrics(task, ["1"])
        if name != "exact_match"  # these rows have different numbers of labels: see test_metrics.py
    ],
)
def test_a_resampled_metric_is_the_metric_of_the_drawn_items(task, metric):
    probabilities, labels = data_of(task)
    drawn = np.random.default_rng(0).integers(0, len(labels), (6, len(labels)))
    counts = np.stack([np.bincount(row, minlength=len(labels)) for row in drawn]).astype(float)
    names = [str(number) for number in range(probabilities.shape[1])]
    thresholds = choose_thresholds(probabilities, labels) if task == "multi-label" else None
    judged = thresholds.decide(metric, probabilities) if metric in TUNED else probabilities
    found = resampled_metric(metric, judged, labels, task, names)(counts)
    expected = [
        metric_value(split_metrics(probabilities[row], labels[row], task, names, thresholds), metric) for row in drawn
    ]
    assert found == pytest.approx(expected)


def test_items_are_drawn_as_often_as_there_are():
    counts = np.concatenate(list(item_counts(50, 40, np.random.default_rng(0))))
    assert counts.shape == (50, 40) and (counts.sum(axis=1) == 40).all() and counts.any(axis=0).all()
    # Groups of four items: as many groups are drawn as there are.
    (counts,) = item_counts(50, 40, np.random.default_rng(0), np.arange(40) // 4)
    by_group = counts.reshape(50, 10, 4)
    assert (by_group == by_group[..., :1]).all() and (by_group[..., 0].sum(axis=1) == 10).all()
    # Many items come in blocks, the last one smaller.
    blocks = list(item_counts(7, CELLS_AT_ONCE // 2, np.random.default_rng(0)))
    assert [len(block) for block in blocks] == [2, 2, 2, 1]


def answers(right: np.ndarray) -> list[np.ndarray]:
    """Probabilities of two classes, one array a seed, from which items [n, m] are right; the label is always 0."""
    return [np.stack([row, 1 - row], axis=1).astype(np.float32) for row in right]


def test_the_interval_of_items_alone_is_binomial():
    # Every seed is right on the same 700 of 1,000 items more than the other: items are all that varies.
    right = np.tile(np.arange(1000) < 700, (6, 1))
    found = two_way(answers(right), answers(np.zeros_like(right)), np.zeros(1000, int), "single-label", "accuracy")
    half = 1.96 * math.sqrt(0.7 * 0.3 / 1000)
    assert found.interval.mean == pytest.approx(0.7)
    assert (found.interval.low, found.interval.high) == pytest.approx((0.7 - half, 0.7 + half), abs=0.05 * half)
    assert found.item_deviation == pytest.approx(half / 1.96, rel=0.05)
    assert found.residual_deviation == pytest.approx(0, abs=1e-6)


def test_the_interval_of_seeds_alone_is_student_s():
    """All items of a seed have the same score, so that the seeds are all that varies."""
    differences = [0.02, 0.05, -0.01, 0.03]
    found = two_way_of([(mean_of(np.full(50, one)), mean_of(np.zeros(50))) for one in differences], 50, resamples=100)
    expected = mean_interval(differences)
    assert (found.interval.mean, found.interval.low) == pytest.approx((expected.mean, expected.low))
    assert found.freedom == pytest.approx(3) and found.item_deviation == pytest.approx(0, abs=1e-9)


def test_sides_that_answer_alike_have_the_point_zero():
    right = np.tile(np.arange(10) < 7, (3, 1))
    found = two_way(answers(right), answers(right), np.zeros(10, int), "single-label", "accuracy")
    assert (found.interval.low, found.interval.high, found.p(), found.equivalence_p(0.01)) == (0, 0, 1, 0)


def test_scores_are_drawn_as_the_metric_that_they_are_the_mean_of():
    rng = np.random.default_rng(3)
    better, worse = rng.random((7, 200)) < 0.8, rng.random((7, 200)) < 0.6
    of_scores = two_way_of([(mean_of(one), mean_of(other)) for one, other in zip(better, worse, strict=True)], 200)
    assert of_scores == two_way(answers(better), answers(worse), np.zeros(200, int), "single-label", "accuracy")
    assert of_scores.interval.mean == pytest.approx(better.mean() - worse.mean())


@pytest.mark.parametrize("world", ["seeds", "items", "single seeds"])
def test_the_interval_covers_what_it_says(world):
    """The 95 % interval of 8 seeds and 100 items holds the true difference, 0, whatever varies most."""
    of_seeds, of_items, rest = {"seeds": (1, 3, 1), "items": (0.1, 3, 3), "single seeds": (0.1, 0.3, 4)}[world]
    rng = np.random.default_rng(6)
    covered = []
    for _ in range(400):
        scores = of_seeds * rng.normal(size=(8, 1)) + of_items * rng.normal(size=(1, 100))
        scores = scores + rest * rng.normal(size=(8, 100))
        pairs = [(mean_of(one), mean_of(np.zeros(100))) for one in scores]
        found = two_way_of(pairs, 100, resamples=200)
        covered.append(found.interval.low <= 0 <= found.interval.high)
        assert (found.p() < 0.05) == (found.interval.above(0) or found.interval.below(0))
    assert 0.925 <= np.mean(covered) <= 0.98


def test_items_of_a_group_are_drawn_together():
    """40 patients of 10 images each, whose images are all right or all wrong: 40 items, not 400."""
    rng = np.random.default_rng(8)
    right = np.repeat(rng.random((6, 40)) < 0.7, 10, axis=1)
    right[:] = right[0]
    sides = answers(right), answers(np.zeros_like(right))
    labels, patients = np.zeros(400, int), np.repeat([f"patient {number}" for number in range(40)], 10)
    alone = two_way(*sides, labels, "single-label", "accuracy")
    together = two_way(*sides, labels, "single-label", "accuracy", groups=patients)
    share = right[0].mean()
    assert together.item_deviation == pytest.approx(math.sqrt(share * (1 - share) / 40), rel=0.05)
    assert together.item_deviation > 3 * alone.item_deviation and alone.interval.method.endswith("and 400 items")
    assert "40 groups of 400 items" in together.interval.method and together.interval.mean == alone.interval.mean
    # A group for each item is the analysis without groups.
    single = two_way(*sides, labels, "single-label", "accuracy", groups=np.arange(400))
    assert single.item_deviation == alone.item_deviation


def test_groups_that_do_not_fit_are_refused():
    sides = answers(np.ones((2, 4), bool)), answers(np.zeros((2, 4), bool))
    for groups in ([1, 2, 3], [1, 1, 1, 1]):
        with pytest.raises(InputError, match="group"):
            two_way(*sides, np.zeros(4, int), "single-label", "accuracy", groups=groups)


def test_equivalence_over_seeds_and_items():
    interval = Interval(0.002, 0.0, 0.004, 8, "")
    found = TwoWay(interval, 0.001, 20, 0.0, 0.0, 0)
    assert found.equivalence_p(0.005) == pytest.approx(1 - stats.t.cdf(3, 20))
    assert found.p() == pytest.approx(2 * (1 - stats.t.cdf(2, 20)))
    point = TwoWay(interval, 0.0, math.inf, 0.0, 0.0, 0)
    assert (point.p(), point.equivalence_p(0.005), point.equivalence_p(0.002)) == (0, 0, 1)


def test_less_is_better_turns_the_difference_round():
    good, bad = (np.tile(np.float32([p, 1 - p]), (20, 1)) for p in (0.9, 0.6))
    assert not higher_is_better("loss")
    found = two_way([good] * 2, [bad] * 2, np.zeros(20, int), "single-label", "loss")
    assert found.interval.mean == pytest.approx(math.log(0.9 / 0.6), rel=1e-6)


def test_the_same_each_time():
    probabilities, labels = data_of("multi-label")
    other = np.flip(probabilities, 0)
    first, second = (two_way([probabilities], [other], labels, "multi-label", "macro_auroc") for _ in range(2))
    assert first == second and first.resamples == 2_000


def test_an_unknown_metric_and_unequal_sides_are_refused():
    probabilities, labels = data_of("multi-label")
    with pytest.raises(InputError, match="no bootstrap of 'accuracy'"):
        two_way([probabilities], [probabilities], labels, "multi-label", "accuracy")
    with pytest.raises(InputError, match="recall:mumps"):
        two_way([probabilities], [probabilities], labels, "multi-label", "recall:mumps", classes=["a", "b", "c"])
    single, label = data_of("single-label")
    with pytest.raises(InputError, match="no bootstrap of 'acuracy'"):
        two_way([single], [single], label, "single-label", "acuracy")
    for sides in ([[probabilities], []], [[], []]):
        with pytest.raises(InputError, match="as many seeds"):
            two_way(*sides, labels, "multi-label", "macro_f1")


def test_the_item_part_of_normal_scores():
    # Differences = seed + item + rest, with known deviations.
    rng = np.random.default_rng(4)
    items, seeds = 2000, 10
    shared = rng.normal(0, 1, items)
    losses = [np.exp(-np.clip(0.5 + 0.05 * (shared + rng.normal(0, 2, items)), 0.01, 5)) for _ in range(seeds)]
    found = two_way(
        [np.stack([p, 1 - p], 1).astype(np.float32) for p in losses],
        [np.tile(np.float32([math.exp(-0.5), 1 - math.exp(-0.5)]), (items, 1))] * seeds,
        np.zeros(items, int),
        "single-label",
        "loss",
        resamples=4000,
    )
    assert found.item_deviation == pytest.approx(0.05 / math.sqrt(items), rel=0.2)
    assert found.residual_deviation == pytest.approx(0.10 / math.sqrt(items), rel=0.2)
    assert stats.norm.ppf(0.975) * found.item_deviation < found.interval.high - found.interval.mean


def test_a_fixed_reference_has_the_whole_variance_of_the_items():
    """Seeds that answer alike: the standard error of a share of 200 items, and no control that takes any of it away."""
    labels = np.zeros(200, dtype=np.int64)
    probabilities = np.tile(np.float32([0.9, 0.1]), (200, 1))
    probabilities[:40] = [0.2, 0.8]
    found = two_way([probabilities] * 3, [], labels, "single-label", "accuracy", reference=0.75)
    assert found.interval.mean == pytest.approx(0.05)
    assert found.item_deviation == pytest.approx(np.sqrt(0.8 * 0.2 / 200), rel=0.06)
    loss = two_way([probabilities] * 3, [], labels, "single-label", "loss", reference=1.0)
    assert loss.interval.mean == pytest.approx(1.0 + 0.8 * np.log(0.9) + 0.2 * np.log(0.2), abs=1e-6)
