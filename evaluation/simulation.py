"""The whole rule of evaluation.verdicts on invented networks, whose true differences are known.

Shape legend: n seeds, m test items.

Each item is answered rightly or wrongly. A network of the control answers item i rightly with probability q_i + a_s,
one of the treatment with q_i + b_i + c_s + difference. q_i (.6 to .8) and b_i are drawn for each item, a_s and c_s for
each seed, all but q_i with mean 0. So seeds and items are both drawn from populations, as the rule assumes, and
accuracies are counts of m. The verdicts come from the functions that judge an experiment.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evaluation.bootstrap import mean_of, two_way_of
from evaluation.statistics import Interval, paired_interval
from evaluation.verdicts import EQUIVALENT, REFUTED, SUPPORTED, Comparison, Measured, judge

# Paired differences of n seeds whose true mean is TRUE_MEAN, by distribution.
TRUE_MEAN = 0.01
DIFFERENCES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "normal": lambda rng, n: rng.normal(TRUE_MEAN, 0.01, n),
    # Accuracies that some seeds miss by far (gamma of shape 2), those of the treatment by half as much again.
    "skewed": lambda rng, n: (0.04 - rng.gamma(2, 0.015, n)) - (0.02 - rng.gamma(2, 0.01, n)),
    "counts of 611": lambda rng, n: (
        (rng.binomial(611, rng.normal(0.74 + TRUE_MEAN, 0.01, n)) - rng.binomial(611, rng.normal(0.74, 0.01, n))) / 611
    ),
    # A control without spread, and a treatment that fails by an exponential amount: no test of so few seeds covers it.
    "exponential": lambda rng, n: TRUE_MEAN + 0.01 * (1 - rng.exponential(1, n)),
}
RESAMPLES = 200  # of items: the relative standard error of their variance is 10 %, far below that of seeds


@dataclass(frozen=True)
class World:
    """The distributions that simulated networks are drawn from.

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
    """The shares of draws in which an experiment had at least one such verdict.

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
    both = two_way_of(pairs, treatment.shape[1], confidence=confidence, resamples=RESAMPLES)
    differences = treatment.mean(axis=1) - control.mean(axis=1)
    return Measured(range(len(treatment)), differences.tolist(), both)


def covers(interval: Interval, truth: float) -> bool:
    """Return whether the interval holds ``truth``, up to rounding."""
    return not interval.above(truth) and not interval.below(truth)


def coverage_over_seeds(
    differences: str, seeds: int, draws: int, method: Callable[[np.ndarray], Interval] = paired_interval, seed: int = 0
) -> float:
    """Return the share of draws of DIFFERENCES whose 95 % interval holds the true mean."""
    rng = np.random.default_rng([seed, seeds])
    found = (method(DIFFERENCES[differences](rng, seeds)) for _ in range(draws))
    return sum(covers(one, TRUE_MEAN) for one in found) / draws


def coverage_over_items(world: World, draws: int, seed: int = 0) -> float:
    """Return the share of draws whose 95 % interval over seeds and items holds the first true difference."""
    rng, truth = np.random.default_rng(seed), world.differences[0]
    found = (measured(*draw(world, truth, rng), 1 - world.alpha).two_way.interval for _ in range(draws))
    return sum(covers(one, truth) for one in found) / draws


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
