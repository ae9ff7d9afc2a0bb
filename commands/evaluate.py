"""Evaluate the finished runs of an experiment.

reread evaluate
reread evaluate --experiment imdb
REREAD_MACHINE=machine.json reread evaluate --experiment imdb      runs that another machine trained
"""

from pathlib import Path

from commands.options import (
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


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides)

    from commands.servers import prefect_session
    from flows.evaluate import evaluate

    with progress(as_json), prefect_session():
        report = Path(evaluate(experiment, plan=plan.to_json()))
    if as_json:
        print_json(results_of(report))
    else:
        print_results(report)
