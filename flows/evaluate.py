"""Flow: evaluate what is trained of an experiment and write its report."""

from typing import Any

from prefect import flow

from flows.preprocess import preprocess
from flows.selection import plan_of
from planning.search import with_known_trials
from tasks.evaluate import evaluate as evaluate_plan
from tasks.liveness import locked
from tracking.runs import shared_connection


@flow(name="evaluate", log_prints=True)
@locked
def evaluate(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    plan: dict[str, Any] | None = None,
) -> str:
    """Evaluate the finished runs of an experiment; return the folder of its report."""
    # The plan was made before its trials were trained.
    value = with_known_trials(plan_of(plan, experiment, variants, seeds, overrides)).to_json()
    with shared_connection():
        return evaluate_plan(value, preprocess(plan=value))
