"""Flow: prepare the arrays that an experiment's networks read.

python -m flows.preprocess [--experiment default]
"""

import argparse

from prefect import flow

from storage.errors import command, refuse_unknown
from tasks.parameters import load_experiment
from tasks.prefect_session import prefect_session
from tasks.preprocess import preprocess as preprocess_data_set


@flow(name="preprocess", log_prints=True)
def preprocess(experiment: str = "default", data: list[str] | None = None, fresh: bool = False) -> dict[str, str]:
    """Prepare the data sets of ``experiment``, or those named in ``data``; return the folder of each."""
    names = sorted(load_experiment(experiment).preprocessing) if data is None else data
    return {name: preprocess_data_set(experiment, name, fresh=fresh) for name in names}


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m flows.preprocess", description="Prepare the data sets of an experiment, or some of them."
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
