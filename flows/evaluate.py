"""Flow: evaluate what is trained of an experiment and write its report.

python -m flows.evaluate [--experiment default]
"""

from prefect import flow

from flows.selection import read_selection
from storage.errors import command
from tasks.evaluate import evaluate as evaluate_experiment
from tasks.prefect_session import prefect_session


@flow(name="evaluate", log_prints=True)
def evaluate(experiment: str = "default", variants: list[str] | None = None, seeds: list[int] | None = None) -> str:
    """Evaluate the finished runs of ``experiment``; return the folder of its report."""
    return evaluate_experiment(experiment, variants, seeds)


@command
def main() -> None:
    arguments = read_selection("evaluate", "Evaluate an experiment.", trains=False)
    with prefect_session():
        evaluate(arguments.experiment, arguments.variants, arguments.seeds)


if __name__ == "__main__":
    main()
