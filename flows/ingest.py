"""Flow: bring the raw data of an experiment into data/ and check it against the manifest."""

from flows.definition import project_flow
from flows.parameters import GivenPlan
from tasks.ingest import ingest as ingest_data_set


@project_flow("ingest")
def ingest(plan: GivenPlan) -> list[str]:
    """Ingest the data sets of a plan; return their names."""
    names = sorted(plan.data)
    for name in names:
        ingest_data_set(name, mirror=plan.environment.mirror)
    return names
