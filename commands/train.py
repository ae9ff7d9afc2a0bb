"""Train the variants of an experiment.

reread train
reread train --experiment imdb --variant han --seed 0
reread train --experiment tiny --set training.optimizer=sgd --no-cache
"""

from commands.options import Experiment, NoCache, NoWait, On, Overrides, Seeds, Variants, plan_of


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
    no_wait: NoWait = False,
    on: On = None,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides, on)

    from commands.servers import prefect_session
    from flows.train import train

    # Training fetches no data, as `reread run` does: what is missing is refused before a server is started.
    plan.preparations()
    with prefect_session():
        train(experiment, plan=plan.to_json(), fresh=no_cache, wait=not no_wait)
