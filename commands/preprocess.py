"""Prepare the data sets of an experiment:  python -m commands.preprocess [--experiment default]"""

import argparse

from commands.prefect_session import prefect_session
from flows.preprocess import preprocess
from planning.experiment import load_experiment
from storage.errors import command, refuse_unknown


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m commands.preprocess", description="Prepare the data sets of an experiment, or some of them."
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--data", nargs="+")
    parser.add_argument("--fresh", action="store_true", help="prepare anew what is there already")
    arguments = parser.parse_args()
    # A wrong name is refused before a server is started for it.
    known = load_experiment(arguments.experiment).preprocessing
    refuse_unknown(arguments.data or (), known, f"the data sets of experiment '{arguments.experiment}'")
    with prefect_session():
        preprocess(arguments.experiment, arguments.data, arguments.fresh)


if __name__ == "__main__":
    main()
