"""Evaluate the finished runs of an experiment.

reread evaluate
reread evaluate --experiment imdb
reread evaluate --experiment imdb --so-far      while some runs are missing
REREAD_MACHINE=machine.json reread evaluate --experiment imdb      runs that another machine trained
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from reread.commands.options import (
    AsJson,
    Experiment,
    Overrides,
    Seeds,
    Variants,
    plan_of,
    print_json,
    print_results,
    progress,
    results_of,
)
from reread.planning.entrance import read_experiment, unset_margin


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    so_far: Annotated[
        bool, typer.Option("--so-far", help="Evaluate what is trained, though other runs are missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    for line in unset_margin(read_experiment(experiment, variants, seeds, overrides or ()), variants):
        print(f"note: {line}", file=sys.stderr, flush=True)
    plan = plan_of(experiment, variants, seeds, overrides)

    from reread.commands.servers import prefect_session

    with progress(as_json), prefect_session():
        from flows.evaluate import evaluate

        report = Path(evaluate(plan=plan, so_far=so_far))
    if as_json:
        print_json(results_of(report))
    else:
        print_results(report)
