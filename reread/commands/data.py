"""Make or verify data sets in data/.

reread data                              the data sets of the default experiment
reread data imdb movie_reviews           these
reread data --experiment imdb            those of another experiment
reread data films --accept-new-version   record data that differs from the manifest as a new version
"""

from pathlib import Path
from typing import Annotated

import typer

from reread.commands.options import AsJson, Experiment, completion, print_json, progress
from reread.planning.entrance import read_experiment
from reread.planning.environment import read_environment
from reread.storage.errors import InputError, refuse_unknown


def known_names() -> list[str]:
    """The data sets that can be made here, and those of the manifest."""
    from reread.preprocessing.manifest import Manifest
    from reread.preprocessing.sources import SOURCES

    return sorted({*SOURCES.available(), *Manifest.load().datasets})


def command(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Data sets; none: the experiment's.",
            autocompletion=completion(lambda _: known_names()),
        ),
    ] = None,
    experiment: Experiment = "default",
    accept_new_version: Annotated[
        bool, typer.Option("--accept-new-version", help="Record data that differs as a new version.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    for name in names or ():
        if name not in known_names() and Path(name).exists():
            raise InputError(f"'{name}' is a file or a folder: `reread data add {name}` makes a data set of it")
    refuse_unknown(names or (), known_names(), "the data sets")
    # A plan imports torch, for a second.
    names = names or read_experiment(experiment, None, None, ()).data_sets
    mirror = read_environment().mirror

    from tasks.ingest import ingest

    with progress(as_json):
        versions = {name: ingest.fn(name, accept_new_version, mirror) for name in names}
    if as_json:
        print_json(versions)
