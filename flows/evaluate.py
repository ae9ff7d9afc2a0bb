"""Flow: evaluate what is trained of an experiment and write its report.

python -m flows.evaluate [--experiment default]
"""

import argparse

from prefect import flow

from storage.errors import command
from tasks.evaluate import evaluate as evaluate_experiment
from tasks.parameters import load_experiment
from tasks.prefect_session import prefect_session


@flow(name="evaluate", log_prints=True)
def evaluate(experiment: str = "default", variants: list[str] | None = None, seeds: list[int] | None = None) -> str:
    """Evaluate the finished runs of ``experiment``; return the folder of its report."""
    return evaluate_experiment(experiment, variants, seeds)


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m flows.evaluate", description="Evaluate an experiment.")
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--variants", nargs="+")
    parser.add_argument("--seeds", nargs="+", type=int)
    arguments = parser.parse_args()
    load_experiment(arguments.experiment).select(arguments.variants, arguments.seeds)
    with prefect_session():
        evaluate(arguments.experiment, arguments.variants, arguments.seeds)


if __name__ == "__main__":
    main()
