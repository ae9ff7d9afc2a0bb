"""Error rates of the rule of evaluation.verdicts, and coverage of its intervals, by simulation.

python -m benchmarks.verdicts [--draws 2000] [--page docs/verdicts.md]

Writes its tables into the page, between the two marks. It reads no data and takes about ten minutes on one core.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy import stats

from evaluation.simulation import DIFFERENCES, World, coverage_over_items, coverage_over_seeds, rates
from evaluation.statistics import Interval, mean_interval, paired_interval
from storage.errors import InputError, command
from storage.files import write_text

BEGIN, END = "<!-- tables of benchmarks.verdicts -->", "<!-- end of the tables -->"
SEEDS = (6, 8, 10, 12)
MARGIN = 0.1
SMALL = 0.005
NONE, AT_MARGIN, MIXED = "no difference", "all at the margin", "half none, half at the margin"


def bca(differences: np.ndarray) -> Interval:
    """Return the BCa bootstrap interval, which the rule does not use."""
    found = stats.bootstrap(
        (differences,), np.mean, axis=-1, n_resamples=1000, method="BCa", rng=np.random.default_rng(0)
    ).confidence_interval
    return Interval(float(differences.mean()), float(found.low), float(found.high), len(differences), "BCa")


METHODS = {"inverted sign-flip test": paired_interval, "Student's t": mean_interval, "BCa bootstrap": bca}


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def over_seeds(draws: int) -> Iterator[Sequence[str]]:
    for differences in DIFFERENCES:
        for name, method in METHODS.items():
            # BCa is slow, and one digit already shows that it differs from 95 %.
            many = draws if method is bca else 5 * draws
            found = [coverage_over_seeds(differences, seeds, many, method) for seeds in SEEDS]
            yield [differences, name, *(f"{100 * share:.1f} %" for share in found)]


def over_items(draws: int) -> Iterator[Sequence[str]]:
    for name, values in {
        "seeds vary most": {"seed_spread": 0.05, "item_spread": 0.02},
        "items vary most": {"seed_spread": 0.002, "item_spread": 0.15},
        "both, skewed seeds": {"seed_spread": 0.02, "item_spread": 0.1, "skewed": True},
    }.items():
        found = [coverage_over_items(World([0.05], seeds=seeds, items=200, **values), draws) for seeds in SEEDS]
        yield [name, *(f"{100 * share:.1f} %" for share in found)]


def worlds() -> Iterator[tuple[str, str, World]]:
    for comparisons, seeds in ((1, 6), (3, 8), (3, 12), (13, 10)):
        many = range(comparisons)
        at_margin, mixed = [MARGIN] * comparisons, [MARGIN * (number % 2) for number in many]
        yield f"{NONE}", "normal", World([0.0] * comparisons, seeds, margin=MARGIN)
        yield f"{NONE}, margin {SMALL:g}", "normal", World([0.0] * comparisons, seeds, margin=SMALL)
        yield f"{NONE}, margin {SMALL:g}", "skewed", World([0.0] * comparisons, seeds, margin=SMALL, skewed=True)
        yield AT_MARGIN, "normal", World(at_margin, seeds, margin=MARGIN)
        yield AT_MARGIN, "skewed", World(at_margin, seeds, margin=MARGIN, skewed=True)
        if comparisons > 1:
            yield MIXED, "normal", World(mixed, seeds, margin=MARGIN)


def of_the_rule(draws: int) -> Iterator[Sequence[str]]:
    for truth, shape, world in worlds():
        print(f"{len(world.differences)} comparisons, {world.seeds} seeds, {truth}, {shape}", flush=True)
        found = rates(world, draws)
        shares = (found.wrong_direction, found.wrong_equivalent, found.wrong, found.decided_direction)
        yield [
            str(len(world.differences)), str(world.seeds), truth, shape,
            *(f"{100 * share:.1f} %" for share in (*shares, found.decided_equivalent)),
        ]  # fmt: skip


def tables(draws: int) -> str:
    """Return the three tables as Markdown."""
    seeds = [f"{seeds} seeds" for seeds in SEEDS]
    return "\n\n".join(
        [
            f"Made by `python -m benchmarks.verdicts --draws {draws}`.",
            f"Coverage of the 95 % interval over seeds, {5 * draws:,} draws each ({draws:,} of BCa):",
            table(["differences", "interval", *seeds], over_seeds(draws)),
            f"Coverage of the 95 % interval over seeds and items, 200 items, {draws:,} draws each:",
            table(["what varies", *seeds], over_items(draws)),
            f"Shares of {draws:,} experiments with at least one wrong verdict, and mean shares of decided comparisons "
            f"(100 items, alpha .05, margin {MARGIN:g} where none is named):",
            table(
                [
                    "comparisons", "seeds", "true differences", "seeds' failures", "any wrong direction",
                    "any wrong equivalence", "any wrong", "supported or refuted", "equivalent",
                ],
                of_the_rule(draws),
            ),
        ]
    )  # fmt: skip


def with_tables(page: str, found: str) -> str:
    """Return the page with ``found`` between its marks; InputError where it has none."""
    if BEGIN not in page or END not in page:
        raise InputError(f"the page has no '{BEGIN}' and '{END}': add both lines where the tables belong")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{after}"


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description="Simulate the rule of verdicts.")
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--page", type=Path, default=Path("docs/verdicts.md"))
    arguments = parser.parse_args()
    page = arguments.page.read_text(encoding="utf-8")
    with_tables(page, "")
    write_text(arguments.page, with_tables(page, tables(arguments.draws)))


if __name__ == "__main__":
    main()
