"""Prepare the arrays of an experiment.

reread preprocess
reread preprocess --experiment imdb --set preprocessing.length_quantile.words=0.9
reread preprocess --experiment tiny --data docstrings --no-cache
"""

from typing import Annotated

import typer

from commands.options import DATA, Experiment, NoCache, Overrides, plan_of
from storage.errors import refuse_unknown


def command(
    experiment: Experiment = "default",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="NAME", help="Only this data set; repeatable.", autocompletion=DATA),
    ] = None,
    overrides: Overrides = None,
    no_cache: NoCache = False,
) -> None:
    plan = plan_of(experiment, overrides=overrides)
    refuse_unknown(data or (), plan.preprocessing, f"--data: the data sets of experiment '{experiment}'")

    from commands.servers import prefect_session
    from flows.preprocess import preprocess

    with prefect_session():
        preprocess(experiment, data, no_cache)
