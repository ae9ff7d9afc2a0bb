"""Make or verify data sets:  python -m commands.ingest [--experiment default] [--data NAME ...]"""

import argparse

from commands.prefect_session import prefect_session
from flows.ingest import ingest
from planning.experiment import load_experiment
from storage.errors import command, refuse_unknown
from tasks.ingest import known_names


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m commands.ingest", description="Make or verify the data sets of an experiment, or those named."
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
