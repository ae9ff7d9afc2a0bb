"""Flow: an experiment from raw data to verdicts. What `make run` and the deployments call."""

from typing import Any

from prefect import flow

from flows.evaluate import evaluate
from flows.ingest import ingest
from flows.selection import plan_of
from flows.train import train
from tasks.liveness import locked


@flow(name="pipeline", log_prints=True)
@locked
def pipeline(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    fresh: bool = False,
    wait: bool = True,
    plan: dict[str, Any] | None = None,
) -> str:
    """Ingest, preprocess, train and evaluate an experiment; return the folder of its report.

    ``variants``, ``seeds`` and ``overrides`` (training.learning_rate=0.02) select and change what the experiment's
    files say; a command hands down its ``plan`` instead. Finished runs are reused unless ``fresh``. A run that
    another process trains is waited for, or fails unless ``wait``.
    """
    chosen = plan_of(plan, experiment, variants, seeds, overrides)
    ingest(plan=chosen.to_json())
    value = chosen.with_data().to_json()
    train(plan=value, fresh=fresh, wait=wait)
    return evaluate(plan=value)
