"""Train the variants of an experiment.

reread train
reread train --experiment imdb --variant han --seed 0
reread train --experiment tiny --set training.optimizer=sgd --no-cache
"""

from reread.commands.options import (
    AsJson,
    Experiment,
    NoCache,
    NoWait,
    On,
    Overrides,
    Seeds,
    Variants,
    plan_of,
    print_json,
    progress,
)


def command(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
    no_wait: NoWait = False,
    on: On = None,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, variants, seeds, overrides, on)

    from reread.commands.servers import prefect_session

    # Training fetches no data, as `reread run` does: what is missing is refused before a server is started.
    plan.preparations()
    with progress(as_json), prefect_session():
        from flows.train import train

        runs = train(experiment, plan=plan, fresh=no_cache, wait=not no_wait)
    if as_json:
        print_json({"runs": runs})
