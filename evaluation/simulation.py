"""The whole rule of evaluation.verdicts on invented networks, whose true differences are known.

Shape legend: n seeds, m test items.

Each item is answered rightly or wrongly. A network of the control answers item i rightly with probability q_i + a_s,
one of the treatment with q_i + b_i + c_s + difference. q_i (.6 to .8) and b_i are drawn for each item, a_s and c_s for
each seed, all but q_i with mean 0. So seeds and items are both drawn from populations, as the rule assumes, and
accuracies are counts of m. The verdicts come from the functions that judge an experiment.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.bootstrap import TwoWay, mean_of, two_way_of
from evaluation.verdicts import EQUIVALENT, REFUTED, SUPPORTED, Comparison, Measured, judge

RESAMPLES = 200  # of items: the relative standard error of their variance is 10 %, far below that of seeds


@dataclass(frozen=True)
class World:
    """What the invented networks are drawn from.

    differences: the true difference in accuracy of each comparison. seed_spread: the deviation of a network's accuracy
    between seeds; item_spread: half the range of b_i. skewed: seeds fail by an exponential amount, the treatment's
    twice as much, in place of normal deviations.
    """

    differences: Sequence[float]
    seeds: int = 8
    items: int = 100
    seed_spread: float = 0.01
    item_spread: float = 0.1
    margin: float = 0.1
    alpha: float = 0.05
    skewed: bool = False


@dataclass(frozen=True)
class Rates:
    """How often an experiment had at least one such verdict, as shares of the draws.

    wrong_direction: supported where the true difference is at most 0, or refuted where it is at least 0.
    wrong_equivalent: equivalent where it is at least the margin. wrong: either. The last two are mean shares of the
    comparisons, whether right or wrong.
    """

    wrong_direction: float
    wrong_equivalent: float
    wrong: float
    decided_direction: float
    decided_equivalent: float


def draw(world: World, difference: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return which items the treatment and the control answer rightly, bool [n, m] each."""
    shape, base = (world.seeds, world.items), rng.uniform(0.6, 0.8, (1, world.items))
    by_item = rng.uniform(-world.item_spread, world.item_spread, (1, world.items))
    spread = world.seed_spread
    if world.skewed:
        of_treatment = 2 * spread * (1 - rng.exponential(1, (world.seeds, 1)))
        of_control = spread * (1 - rng.exponential(1, (world.seeds, 1)))
    else:
        of_treatment, of_control = spread * rng.normal(size=(2, world.seeds, 1))
    treatment = rng.random(shape) < base + by_item + of_treatment + difference
    return treatment, rng.random(shape) < base + of_control


def measured(treatment: np.ndarray, control: np.ndarray, confidence: float) -> Measured:
    """Return what an experiment measures of these answers."""
    pairs = [(mean_of(first), mean_of(second)) for first, second in zip(treatment, control, strict=True)]
    both: TwoWay = two_way_of(pairs, treatment.shape[1], confidence=confidence, resamples=RESAMPLES)
    differences = treatment.mean(axis=1) - control.mean(axis=1)
    return Measured(range(len(treatment)), differences.tolist(), both)


def experiments(world: World, draws: int, seed: int = 0) -> Iterator[list]:
    """Yield the verdicts of each of ``draws`` experiments."""
    rng = np.random.default_rng(seed)
    named = [Comparison(str(i), "", "", "treatment", "control", "accuracy") for i in range(len(world.differences))]
    for _ in range(draws):
        found = [measured(*draw(world, difference, rng), 1 - world.alpha) for difference in world.differences]
        yield judge(named, found, world.margin, world.alpha)


def rates(world: World, draws: int, seed: int = 0) -> Rates:
    """Return the error rates of the rule over ``draws`` experiments."""
    truths = np.array(world.differences)
    counts = np.zeros(5)
    for verdicts in experiments(world, draws, seed):
        words = np.array([verdict.verdict for verdict in verdicts])
        direction = ((words == SUPPORTED) & (truths <= 0)) | ((words == REFUTED) & (truths >= 0))
        equivalent = (words == EQUIVALENT) & (np.abs(truths) >= world.margin)
        counts += [
            direction.any(),
            equivalent.any(),
            (direction | equivalent).any(),
            np.isin(words, (SUPPORTED, REFUTED)).mean(),
            (words == EQUIVALENT).mean(),
        ]
    return Rates(*(counts / draws).tolist())
