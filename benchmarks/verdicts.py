"""Error rates, coverage and power of the rule of reread.verdicts.rule on invented networks, by simulation.

nice python -m benchmarks.verdicts --draws 1200 --json benchmarks/results/2026-11-25-verdicts.json

The scores of a side's seeds are drawn from a shape of SHAPES, in units of a seed's standard deviation. The choice of
test items moves the difference by a normal error; the rule gets its deviation, as from a bootstrap. The evidence and
the words come from the functions that judge an experiment. Reads no data and takes about 10 minutes on one core.
docs/tables.py makes the tables of docs/error-rates.md from the file.

Shape legend: n seeds, K comparisons of an experiment.
"""

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reread.storage.errors import InputError, command
from reread.storage.files import write_json
from reread.verdicts.items import Items
from reread.verdicts.rule import (
    DIFFERENT,
    EQUIVALENT,
    NETWORKS,
    REFUTED,
    SUPPORTED,
    VERSION,
    Comparison,
    Evidence,
    Measured,
    Side,
    words,
)
from reread.verdicts.statistics import SignFlip

ALPHA = 0.05
# Tests by all splits up to 8 and 8 seeds, else by 4,000 draws: as valid as those of the rule, and less exact.
SETTINGS = {"most": 7_000, "draws": 4_000}
# No level is above alpha, so that a larger p need not be exact.
EXACT = ALPHA
ITEMS = 10_000
# A margin that no interval reaches inside, so that only directions are shown.
NARROW = 1e-6
COMPARISON = Comparison("simulated", "", "", "treatment", "control", "score")
SEEDS = (4, 6, 8, 10, 12)
COMPARISONS = (1, 3, 5, 13)
# Of a true difference that is as large: its direction is shown always.
WIDE = 20.0
# In standard deviations of a seed.
DIFFERENCE, ITEM_DEVIATION = 2.0, 0.5
ITEM_DEVIATIONS = (0.0, 0.25, 0.5, 1.0, 2.0)
POWER_SEEDS = (*range(4, 17), 30)
# The published experiments have up to 13.
POWER_COMPARISONS = range(1, 14)
LOOKS = (
    ("6 seeds, one look", (6,), ALPHA),
    ("6 seeds, then 12, declared: half of alpha each", (6, 12), ALPHA / 2),
    ("6 seeds, then 12, not declared", (6, 12), ALPHA),
    ("6, 8, 10, 12 seeds until a direction is shown", (6, 8, 10, 12), ALPHA),
)

Shape = Callable[[np.random.Generator, int], np.ndarray]


def normal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.normal(size=n)


def heavy(rng: np.random.Generator, n: int) -> np.ndarray:
    """Student's t with 3 degrees of freedom."""
    return rng.standard_t(3, n) / math.sqrt(3)


def skewed(rng: np.random.Generator, n: int) -> np.ndarray:
    """A gamma distribution of shape 2, turned round: most seeds are good, and some fall far below."""
    return (2 - rng.gamma(2, 1, n)) / math.sqrt(2)


def failing(rng: np.random.Generator, n: int) -> np.ndarray:
    """Of 100 seeds 5 fail by 10 standard deviations of the others; the mean of all is 0."""
    return rng.normal(size=n) - 10 * (rng.random(n) < 0.05) + 0.5


def wide(rng: np.random.Generator, n: int) -> np.ndarray:
    return 3 * rng.normal(size=n)


# Treatment and control.
SHAPES: dict[str, tuple[Shape, Shape]] = {
    "normal": (normal, normal),
    "t3": (heavy, heavy),
    "both skewed": (skewed, skewed),
    "spreads 3:1": (wide, normal),
    "both fail": (failing, failing),
    "treatment skewed": (skewed, normal),
    "treatment fails": (failing, normal),
}


@dataclass(frozen=True)
class World:
    """The distribution of experiments. Differences, margin and item_deviation are in standard deviations of a seed.

    differences: the true difference of each comparison, [K].
    """

    shape: str
    seeds: int
    differences: Sequence[float]
    margin: float
    item_deviation: float = 0.5


def scores(world: World, difference: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores of the treatment and of the control, float64 [n] each."""
    treatment, control = SHAPES[world.shape]
    error = rng.normal(0, world.item_deviation) if world.item_deviation else 0.0
    return treatment(rng, world.seeds) + difference + error, control(rng, world.seeds)


def evidence_of(first: np.ndarray, second: np.ndarray, world: World) -> Evidence:
    """Return the evidence of two networks with these scores, float64 [n] each."""
    treatment, control = (Side(scores.tolist(), range(len(scores))) for scores in (first, second))
    items = Items(world.item_deviation, ITEMS, ITEMS)
    return Evidence(COMPARISON, Measured(NETWORKS, treatment, control, items), world.margin, EXACT, **SETTINGS)


def experiments(world: World, draws: int) -> Iterator[list[Evidence]]:
    """Yield the evidence of each of ``draws`` experiments, [K]."""
    rng = np.random.default_rng([0, world.seeds, *world.shape.encode()])
    for _ in range(draws):
        yield [evidence_of(*scores(world, difference, rng), world) for difference in world.differences]


@dataclass(frozen=True)
class Rates:
    """Shares of experiments with at least one wrong verdict, and of intervals that hold the true difference.

    direction: a direction that is not the true one (with no difference, any). size: 'supported' or 'refuted' though
    the true difference is not beyond the margin. equivalence: 'equivalent' though it is not inside the margins.
    coverage: of the interval of 1 - alpha, without Holm's procedure.
    """

    direction: float
    size: float
    equivalence: float
    coverage: float


def rates(world: World, experiments: Sequence[Sequence[Evidence]], comparisons: int) -> Rates:
    """Return the rates of experiments of ``comparisons`` comparisons: each of ``experiments`` is cut into as many."""
    counts, groups = np.zeros(3), 0
    for experiment in experiments:
        for first in range(0, len(experiment) - comparisons + 1, comparisons):
            group = slice(first, first + comparisons)
            judged = [word for word, _, _ in words(experiment[group], ALPHA)]
            counts += wrong(judged, experiment[group], world.differences[group], world.margin)
            groups += 1
    held = [
        min(evidence.one_sided_p(truth)) >= ALPHA / 2
        for experiment in experiments
        for evidence, truth in zip(experiment, world.differences, strict=True)
    ]
    direction, size, equivalence = (counts / groups).tolist()
    return Rates(direction, size, equivalence, float(np.mean(held)))


def wrong(
    judged: Sequence[str], evidence: Sequence[Evidence], truths: Sequence[float], margin: float
) -> tuple[bool, bool, bool]:
    """Return whether an experiment has a wrong direction, a wrong size, and a wrong equivalence."""
    direction = size = equivalence = False
    for word, compared, truth in zip(judged, evidence, truths, strict=True):
        if word in (SUPPORTED, REFUTED, DIFFERENT):
            direction |= compared.mean * truth <= 0
        size |= word in (SUPPORTED, REFUTED) and abs(truth) <= margin
        equivalence |= word == EQUIVALENT and abs(truth) >= margin
    return direction, size, equivalence


def power(world: World, comparisons: Sequence[int], draws: int) -> np.ndarray:
    """Return how often the direction of the first difference is shown, beside others that show nothing.

    float64 [2, C]: by pairs and by the rule, for each number of comparisons. By pairs: the sign-flip test of the
    differences of equal seeds over the same items, as version 1 of the rule had it.
    """
    rng, p_values = np.random.default_rng([0, world.seeds]), np.zeros((2, draws))
    for draw in range(draws):
        first, second = scores(world, world.differences[0], rng)
        p_values[0, draw] = SignFlip(first - second, SETTINGS["draws"]).one_sided_p()[0]
        p_values[1, draw] = evidence_of(first, second, world).of_zero[0]
    shares: np.ndarray = (2 * p_values[:, None] < ALPHA / np.asarray(comparisons)[:, None]).mean(axis=2)
    return shares


def looks(world: World, sizes: Sequence[int], level: float, draws: int) -> float:
    """Return how often a direction is shown where there is no difference, at any of the ``sizes``, seeds per variant.

    Each look tests all seeds so far at ``level``. The test items are the same in all looks.
    """
    rng, wrong = np.random.default_rng([0, *sizes]), 0
    whole = World(world.shape, max(sizes), world.differences, world.margin, world.item_deviation)
    for _ in range(draws):
        first, second = scores(whole, 0.0, rng)
        wrong += any(evidence_of(first[:n], second[:n], world).p < level for n in sizes)
    return wrong / draws


def measured_rates(shape: str, seeds: int, draws: int) -> list[dict[str, Any]]:
    """Return the error rates of experiments with each number of comparisons.

    direction and coverage are where no comparison has a difference, size and equivalence where all true differences
    equal the margin.
    """
    most = max(COMPARISONS)
    none, margin = World(shape, seeds, [0.0] * most, NARROW), World(shape, seeds, [WIDE] * most, WIDE)
    without, at_margin = (list(experiments(world, draws)) for world in (none, margin))
    rows = []
    for comparisons in COMPARISONS:
        of_none, of_margin = asdict(rates(none, without, comparisons)), asdict(rates(margin, at_margin, comparisons))
        shares = {name: of_none[name] for name in ("direction", "coverage")}
        shares |= {name: of_margin[name] for name in ("size", "equivalence")}
        rows.append({"shape": shape, "seeds": seeds, "comparisons": comparisons, **shares})
    return rows


def measured_by_items(seeds: int, draws: int) -> list[dict[str, Any]]:
    """Return the rate of wrong directions where one side's spread is three times the other's, by the items' error."""
    most, rows = max(COMPARISONS), []
    for deviation in ITEM_DEVIATIONS:
        world = World("spreads 3:1", seeds, [0.0] * most, NARROW, deviation)
        direction = rates(world, list(experiments(world, draws)), most).direction
        rows.append({"seeds": seeds, "comparisons": most, "item_deviation": deviation, "direction": direction})
    return rows


def measured_power(seeds: int, draws: int) -> list[dict[str, Any]]:
    """Return how often a direction is shown with each number of comparisons, where seeds are normal.

    pairs: by version 1 of the rule; rule: by today's; both where all seeds share their test items alone. other_items:
    by today's where the choice of test items leaves an error as well.
    """
    same, other = (
        power(World("normal", seeds, [DIFFERENCE], NARROW, deviation), POWER_COMPARISONS, draws)
        for deviation in (0.0, ITEM_DEVIATION)
    )
    return [
        {"seeds": seeds, "comparisons": comparisons, "pairs": pairs, "rule": rule, "other_items": items}
        for comparisons, pairs, rule, items in zip(POWER_COMPARISONS, *same.tolist(), other[1].tolist(), strict=True)
    ]


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description="Simulate the rule of verdicts.")
    parser.add_argument("--draws", type=int, default=800, help="experiments of each kind")
    parser.add_argument("--json", type=Path, required=True, help="the file of figures")
    arguments = parser.parse_args()
    if arguments.draws < 1:
        raise InputError("--draws: give a positive number")
    figures: dict[str, Any] = {
        "rule": VERSION, "draws": arguments.draws, "alpha": ALPHA, "difference": DIFFERENCE,
        "item_deviation": ITEM_DEVIATION, "rates": [], "by_items": [], "power": [], "looks": [],
    }  # fmt: skip
    for seeds in POWER_SEEDS:
        print(f"power, {seeds} seeds", flush=True)
        figures["power"] += measured_power(seeds, arguments.draws)
    world = World("normal", max(SEEDS), [0.0], NARROW)
    for name, sizes, level in LOOKS:
        figures["looks"].append({"looks": name, "direction": looks(world, sizes, level, arguments.draws)})
    for seeds in SEEDS:
        print(f"errors of items, {seeds} seeds", flush=True)
        figures["by_items"] += measured_by_items(seeds, arguments.draws)
    for shape in SHAPES:
        for seeds in SEEDS:
            print(f"{shape}, {seeds} seeds", flush=True)
            figures["rates"] += measured_rates(shape, seeds, arguments.draws)
    write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
