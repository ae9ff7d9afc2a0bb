"""Error rates, coverage and power of the rule of reread.verdicts.rule, by simulation.

nice python -m benchmarks.verdicts --draws 1200 --json benchmarks/results/2026-11-25-verdicts.json

Reads no data and takes about 10 minutes on one core. docs/tables.py makes the tables of
docs/error-rates.md from the file.
"""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError, command
from reread.storage.files import write_json
from reread.verdicts.rule import VERSION
from reread.verdicts.simulation import ALPHA, NARROW, SHAPES, World, experiments, looks, power, rates

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
