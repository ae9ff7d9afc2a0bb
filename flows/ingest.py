"""Flow: bring the raw data of an experiment into data/ and check it against the manifest."""

from typing import Any

from prefect import flow

from flows.selection import plan_of
from tasks.ingest import ingest as ingest_data_set
from tasks.liveness import locked


@flow(name="ingest", log_prints=True)
@locked
def ingest(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    overrides: list[str] | None = None,
    plan: dict[str, Any] | None = None,
) -> list[str]:
    """Ingest the data sets of an experiment; return their names."""
    chosen = plan_of(plan, experiment, variants, seeds, overrides)
    mirror = chosen.environment.mirror
    names = sorted(chosen.data)
    for name in names:
        ingest_data_set(name, mirror=str(mirror) if mirror else None)
    return names
