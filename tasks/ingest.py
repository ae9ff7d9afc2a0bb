"""Make one data set in data/, or check the one that is there against the manifest.

python -m tasks.ingest [NAME ...] [--experiment NAME] [--accept-new-version]
"""

import argparse
from pathlib import Path

from reread.planning.environment import read_environment
from reread.planning.experiment import load_experiment
from reread.planning.manifest import read_manifest
from reread.preprocessing.ingest import data_card, sizes
from reread.preprocessing.ingest import ingest as ingest_source
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.preprocessing.sources import SOURCES, embedded
from reread.storage.errors import InputError, command, refuse_unknown
from tasks.dvc_cache import how_to_mend
from tasks.progress import say
from tasks.step import publish_results, step


@step(task_run_name="ingest-{data}")
def ingest(data: str, accept_new_version: bool = False, mirror: Path | None = None) -> str:
    """Make data set ``data``, or verify it; return the version that the manifest knows it by."""
    read_manifest()
    try:
        entry = ingest_source(data, accept_new_version=accept_new_version, mirror=mirror, progress=say)
    except InputError as error:
        raise InputError(f"{error}{how_to_mend(data)}") from None
    say(f"{data}: {sizes(entry)}")
    return entry.version


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.ingest", description="Make or verify data sets in data/.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SOURCES.available())}")
    parser.add_argument("--experiment", help="the data sets of this experiment")
    parser.add_argument(
        "--accept-new-version", action="store_true", help="record data that differs from the manifest as a new version"
    )
    arguments = parser.parse_args()
    refuse_unknown(arguments.names, {*SOURCES.available(), *Manifest.load().datasets}, "the names given")
    of_experiment = load_experiment(arguments.experiment).data_sets if arguments.experiment else embedded()
    names = arguments.names or of_experiment
    mirror = read_environment().mirror
    for name in names:
        ingest.fn(name, arguments.accept_new_version, mirror)
    publish_results(
        arguments.experiment or "default",
        "ingest",
        {f"{name}.md": data_card(open_data_set(name)) for name in Manifest.load().datasets},
    )


if __name__ == "__main__":
    main()
