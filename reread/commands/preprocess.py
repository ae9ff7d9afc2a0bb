"""Prepare the arrays of an experiment.

reread preprocess
reread preprocess --experiment imdb --set preprocessing.length_quantile.words=0.9
reread preprocess --experiment tiny --data docstrings --no-cache
"""

from typing import Annotated

import typer

from reread.commands.options import DATA, AsJson, Experiment, NoCache, Overrides, plan_of, print_json, progress


def command(
    experiment: Experiment = "default",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME", help="Only this data set; repeatable.", autocompletion=DATA),
    ] = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    plan = plan_of(experiment, overrides=overrides)
    if data:
        plan = plan.select_data(data)

    from reread.commands.servers import prefect_session

    with progress(as_json), prefect_session():
        from flows.preprocess import preprocess

        folders = preprocess(plan=plan, fresh=no_cache)
    if as_json:
        print_json({"prepared": list(folders.values())})
