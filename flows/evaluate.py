"""Flow: evaluate what is trained of an experiment and write its report.

reread evaluate
"""

from prefect import flow

from tasks.evaluate import evaluate as evaluate_experiment


@flow(name="evaluate", log_prints=True)
def evaluate(experiment: str = "default", variants: list[str] | None = None, seeds: list[int] | None = None) -> str:
    """Evaluate the finished runs of ``experiment``; return the folder of its report."""
    return evaluate_experiment(experiment, variants, seeds)
