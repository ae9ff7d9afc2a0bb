"""Evaluate the finished runs of an experiment.

reread evaluate
reread evaluate --experiment imdb
REREAD_MACHINE=machine.json reread evaluate --experiment imdb      runs that another machine trained
"""

from commands.options import Experiment, Overrides, Seeds, Variants, plan_of


def command(
    experiment: Experiment = "default", variants: Variants = None, seeds: Seeds = None, overrides: Overrides = None
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides)

    from commands.servers import prefect_session
    from flows.evaluate import evaluate

    with prefect_session():
        evaluate(experiment, plan=plan.to_json())
