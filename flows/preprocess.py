"""Flow: prepare the arrays that an experiment's networks read."""

from typing import Any

from prefect import flow

from flows.selection import plan_of
from tasks.liveness import locked
from tasks.preprocess import preprocess as preprocess_data_set


@flow(name="preprocess", log_prints=True)
@locked
def preprocess(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    fresh: bool = False,
    plan: dict[str, Any] | None = None,
) -> dict[str, str]:
    """Prepare the arrays of an experiment; return the folder of each by its prepared key."""
    preparations = plan_of(plan, experiment, variants, seeds, overrides).preparations()
    return {key: preprocess_data_set(about, fresh=fresh) for key, about in preparations.items()}
