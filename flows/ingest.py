"""Flow: bring the raw data of an experiment into data/ and check it against the manifest.

python -m flows.ingest [--experiment default] [--data NAME ...]
"""

import argparse

from prefect import flow

from storage.errors import command, refuse_unknown
from tasks.ingest import ingest as ingest_data_set
from tasks.ingest import known_names
from tasks.parameters import load_experiment
from tasks.prefect_session import prefect_session


@flow(name="ingest", log_prints=True)
def ingest(experiment: str = "default", data: list[str] | None = None) -> list[str]:
    """Ingest the data sets of ``experiment``, or those named in ``data``; return their names."""
    names = sorted(load_experiment(experiment).preprocessing) if data is None else data
    for name in names:
        ingest_data_set(name)
    return names


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m flows.ingest", description="Make or verify the data sets of an experiment, or those named."
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--data", nargs="+")
    arguments = parser.parse_args()
    # A wrong name is refused before a server is started for it.
    if arguments.data is None:
        load_experiment(arguments.experiment)
    refuse_unknown(arguments.data or (), known_names(), "the names given")
    with prefect_session():
        ingest(arguments.experiment, arguments.data)


if __name__ == "__main__":
    main()
