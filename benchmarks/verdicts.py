"""Error rates, coverage and power of the rule of verdicts.rule, by simulation.

python -m benchmarks.verdicts [--draws 800] [--page docs/verdicts.md]

Writes its tables into the page, between the two marks. It reads no data and takes about 15 minutes on one core.
"""

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from storage.errors import InputError, command
from storage.files import write_text
from verdicts.simulation import ALPHA, NARROW, SHAPES, Rates, World, experiments, looks, power, rates

BEGIN, END = "<!-- tables of benchmarks.verdicts -->", "<!-- end of the tables -->"
SEEDS = (4, 6, 8, 10, 12)
COMPARISONS = (1, 3, 5, 13)
# Of a true difference that is as large: its direction is shown always.
WIDE = 20.0
DESIGNS = ((1, 6, 2.0), (3, 6, 2.5), (5, 8, 2.0), (13, 10, 2.0))
ONE_LOOK, TWO_LOOKS, FOUR_LOOKS = (6,), (6, 12), (6, 8, 10, 12)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def measured(draws: int) -> dict[tuple[str, int, str, int], Rates]:
    """Return the rates by shape, seeds, truth ("none" or "margin") and number of comparisons."""
    found = {}
    for shape in SHAPES:
        for seeds in SEEDS:
            print(f"{shape}, {seeds} seeds", flush=True)
            for truth, world in (
                ("none", World(shape, seeds, [0.0] * max(COMPARISONS), NARROW)),
                ("margin", World(shape, seeds, [WIDE] * max(COMPARISONS), WIDE)),
            ):
                drawn = list(experiments(world, draws))
                for comparisons in COMPARISONS:
                    found[shape, seeds, truth, comparisons] = rates(world, drawn, comparisons)
    return found


def tables(draws: int) -> str:
    """Return the tables as Markdown."""
    found = measured(draws)
    counts = [f"{count} comparison{'s' if count > 1 else ''}" for count in COMPARISONS]

    def by_comparisons(truth: str, kind: str) -> list[list[str]]:
        return [
            [shape, str(seeds)]
            + [percent(getattr(found[shape, seeds, truth, comparisons], kind)) for comparisons in COMPARISONS]
            for shape in SHAPES
            for seeds in SEEDS
        ]

    error = math.sqrt(ALPHA * (1 - ALPHA) / draws)
    sizes = [
        [shape] + [percent(max(found[shape, seeds, "margin", many].size for seeds in SEEDS)) for many in COMPARISONS]
        for shape in SHAPES
    ]
    coverage = [[shape, *(percent(found[shape, seeds, "none", 1].coverage) for seeds in SEEDS)] for shape in SHAPES]
    powers = [
        [str(many), str(seeds), f"{difference:g}", *map(percent, power("normal", seeds, many, difference, draws))]
        for many, seeds, difference in DESIGNS
    ]
    world = World("normal", max(FOUR_LOOKS), [0.0], NARROW)
    second = [
        ["6 seeds, one look", percent(looks(world, ONE_LOOK, ALPHA, draws))],
        ["6 seeds, then 12, declared: half of alpha each", percent(looks(world, TWO_LOOKS, ALPHA / 2, draws))],
        ["6 seeds, then 12, not declared", percent(looks(world, TWO_LOOKS, ALPHA, draws))],
        ["6, 8, 10, 12 seeds until a direction is shown", percent(looks(world, FOUR_LOOKS, ALPHA, draws))],
    ]
    return "\n\n".join(
        [
            f"Made by `python -m benchmarks.verdicts --draws {draws}`. Alpha is 0.05. The standard error of a rate of\n"
            f"5 % is {percent(error)} with {max(COMPARISONS)} comparisons, and less with fewer.",
            "Any wrong direction, where no comparison has a difference:",
            table(["seeds' scores", "seeds", *counts], by_comparisons("none", "direction")),
            "Any wrong equivalence, where all true differences equal the margin:",
            table(["seeds' scores", "seeds", *counts], by_comparisons("margin", "equivalence")),
            'Any wrong "supported", where all true differences equal the margin; the highest rate of 4 to 12 seeds:',
            table(["seeds' scores", *counts], sizes),
            "Coverage of the 95 % interval:",
            table(["seeds' scores", *(f"{seeds} seeds" for seeds in SEEDS)], coverage),
            "Power of a direction: one difference, in standard deviations of a seed, beside comparisons that show\n"
            "nothing. Version 1 of the rule paired equal seeds:",
            table(["comparisons", "seeds", "difference", "version 1", "version 2"], powers),
            "A wrong direction in one comparison whose seeds are added:",
            table(["looks", "wrong direction"], second),
        ]
    )


def with_tables(page: str, found: str) -> str:
    """Return the page with ``found`` between its marks; InputError where it has none."""
    if BEGIN not in page or END not in page:
        raise InputError(f"the page has no '{BEGIN}' and '{END}': add both lines where the tables belong")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{found}\n\n{END}{after}"


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description="Simulate the rule of verdicts.")
    parser.add_argument("--draws", type=int, default=800)
    parser.add_argument("--page", type=Path, default=Path("docs/verdicts.md"))
    arguments = parser.parse_args()
    with_tables(arguments.page.read_text(encoding="utf-8"), "")
    found = tables(arguments.draws)
    write_text(arguments.page, with_tables(arguments.page.read_text(encoding="utf-8"), found))


if __name__ == "__main__":
    main()
