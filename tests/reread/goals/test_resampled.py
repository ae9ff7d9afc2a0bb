"""The bootstrap of items: each resampled metric against the metric itself, and the deviation against theory."""

import math

import numpy as np
import pytest

from reread.evaluation.items import item_spread
from reread.goals import goal, metric_value
from reread.goals.multi_label import TUNED, choose_thresholds
from reread.storage.errors import InputError
from reread.verdicts.items import Items
from reread.verdicts.resampling import CELLS_AT_ONCE, item_counts, item_spread_of, mean_of


def data_of(task: str, rows: int = 60, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    if task == "regression":
        return rng.normal(5, 2, (rows, 1)).astype(np.float32), rng.normal(5, 2, (rows, 1)).astype(np.float32)
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
        for task in ("single-label", "multi-label", "regression")
        for name in goal(task).comparison_metrics(["1"])
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
    measure = goal(task).metric(metric, names)
    seeds = [judged, judged[::-1]]
    resampled = measure.resampled(seeds, labels)(counts).T
    for seed, scores in zip(seeds, resampled, strict=True):
        assert scores == pytest.approx([measure.value(seed[row], labels[row]) for row in drawn])
    if metric not in TUNED:
        splits = [goal(task).measure({"test": probabilities[row]}, {"test": labels[row]}, names) for row in drawn]
        assert resampled[0] == pytest.approx([metric_value(split["test"], metric) for split in splits])


def test_items_are_drawn_as_often_as_there_are():
    counts = np.concatenate(list(item_counts(50, 40)))
    assert counts.shape == (50, 40) and (counts.sum(axis=1) == 40).all() and counts.any(axis=0).all()
    # Groups of four items: as many groups are drawn as there are.
    (counts,) = item_counts(50, 40, np.arange(40) // 4)
    by_group = counts.reshape(50, 10, 4)
    assert (by_group == by_group[..., :1]).all() and (by_group[..., 0].sum(axis=1) == 10).all()
    # Many items come in blocks, the last one smaller.
    blocks = list(item_counts(7, CELLS_AT_ONCE // 2))
    assert [len(block) for block in blocks] == [2, 2, 2, 1]


def answers(right: np.ndarray) -> list[np.ndarray]:
    """Probabilities of two classes, one array a seed, from which items [n, m] are right; the label is always 0."""
    return [np.stack([row, 1 - row], axis=1).astype(np.float32) for row in right]


def spread(treatment, control, **others) -> Items:
    labels = np.zeros(len((treatment or control)[0]), int)
    return item_spread(goal("single-label").metric("accuracy"), treatment, control, labels, **others)


def test_the_deviation_of_items_alone_is_binomial():
    # Every seed is right on the same 700 of 1,000 items more than the other: items are all that varies.
    right = np.tile(np.arange(1000) < 700, (6, 1))
    item_part = spread(answers(right), answers(np.zeros_like(right)))
    assert item_part.deviation == pytest.approx(math.sqrt(0.7 * 0.3 / 1000), rel=0.05)
    assert (item_part.units, item_part.count, item_part.resamples) == (1000, 1000, 2000)


def test_scores_that_do_not_vary_over_items_leave_nothing():
    scores = [mean_of(np.full(50, score)) for score in (0.02, 0.05, -0.01, 0.03)]
    item_part = item_spread_of(scores, [mean_of(np.zeros(50))], 50, resamples=100)
    assert item_part.deviation == pytest.approx(0, abs=1e-9) and item_part.resamples == 100


def test_a_metric_that_some_resamples_do_not_have_leaves_no_error_of_zero():
    # Half of the resamples of two numbers are one of them twice, and R squared has no variance to explain.
    targets = np.array([[1.0], [2.0]], np.float32)
    with pytest.raises(InputError, match=r"\d+ of 2000 resamples of the 2 items have no finite score"):
        item_spread(goal("regression").metric("r2"), [targets, targets + 0.5], [targets - 0.5], targets)


def test_sides_that_answer_alike_leave_nothing():
    right = np.tile(np.arange(10) < 7, (3, 1))
    assert spread(answers(right), answers(right)).deviation == pytest.approx(0, abs=1e-9)


def test_scores_are_drawn_as_the_metric_that_they_are_the_mean_of():
    rng = np.random.default_rng(3)
    better, worse = rng.random((7, 200)) < 0.8, rng.random((5, 200)) < 0.6
    sides = ([mean_of(right) for right in side] for side in (better, worse))
    assert item_spread_of(*sides, 200) == spread(answers(better), answers(worse))


def test_items_of_a_group_are_drawn_together():
    """40 patients of 10 images each, whose images are all right or all wrong: 40 items, not 400."""
    rng = np.random.default_rng(8)
    right = np.repeat(rng.random((6, 40)) < 0.7, 10, axis=1)
    right[:] = right[0]
    sides = answers(right), answers(np.zeros_like(right))
    patients = np.repeat([f"patient {number}" for number in range(40)], 10)
    alone, together = spread(*sides), spread(*sides, groups=patients)
    share = right[0].mean()
    assert together.deviation == pytest.approx(math.sqrt(share * (1 - share) / 40), rel=0.05)
    assert together.deviation > 3 * alone.deviation and alone.words() == "400 items"
    assert together.words() == "40 groups of 400 items"
    # A group for each item is the analysis without groups.
    assert spread(*sides, groups=np.arange(400)).deviation == alone.deviation


def test_groups_that_do_not_fit_are_refused():
    sides = answers(np.ones((2, 4), bool)), answers(np.zeros((2, 4), bool))
    for groups in ([1, 2, 3], [1, 1, 1, 1]):
        with pytest.raises(InputError, match="group"):
            spread(*sides, groups=groups)


def test_the_same_each_time():
    probabilities, labels = data_of("multi-label")
    other = np.flip(probabilities, 0)
    first, second = (item_spread(goal("multi-label").metrics[0], [probabilities], [other], labels) for _ in range(2))
    assert first == second and first.resamples == 2_000 and first.deviation > 0


def test_an_unknown_metric_and_no_seed_are_refused():
    for task, name in (("multi-label", "accuracy"), ("multi-label", "recall:mumps"), ("single-label", "acuracy")):
        with pytest.raises(InputError, match=f"no metric '{name}' of {task} data"):
            goal(task).metric(name, ["a", "b", "c"])
    probabilities, labels = data_of("multi-label")
    with pytest.raises(InputError, match="at least one seed"):
        item_spread(goal("multi-label").metric("macro_f1"), [], [probabilities], labels)


def test_the_item_part_of_normal_scores():
    # Losses = seed + item + rest, with known deviations.
    rng = np.random.default_rng(4)
    items, seeds = 2000, 10
    shared = rng.normal(0, 1, items)
    losses = [np.exp(-np.clip(0.5 + 0.05 * (shared + rng.normal(0, 2, items)), 0.01, 5)) for _ in range(seeds)]
    item_part = item_spread(
        goal("single-label").metric("loss"),
        [np.stack([p, 1 - p], 1).astype(np.float32) for p in losses],
        [np.tile(np.float32([math.exp(-0.5), 1 - math.exp(-0.5)]), (items, 1))] * 4,
        np.zeros(items, int),
        resamples=4000,
    )
    assert item_part.deviation == pytest.approx(0.05 / math.sqrt(items), rel=0.2)


def test_a_published_figure_leaves_the_whole_variance_of_the_items():
    """Seeds that answer alike: the standard error of a share of 200 items, and no control that takes any of it away."""
    right = np.tile(np.arange(200) >= 40, (3, 1))
    assert spread(answers(right), []).deviation == pytest.approx(np.sqrt(0.8 * 0.2 / 200), rel=0.06)
