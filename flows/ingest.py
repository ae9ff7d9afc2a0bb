"""Flow: bring the raw data of an experiment into data/ and check it against the manifest."""

from flows.definition import project_flow
from flows.parameters import Experiment, GivenPlan, Overrides, Seeds, Variants, plan_of
from tasks.ingest import ingest as ingest_data_set


@project_flow("ingest")
def ingest(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    plan: GivenPlan = None,
) -> list[str]:
    """Ingest the data sets of an experiment; return their names."""
    chosen = plan_of(plan, experiment, variants, seeds, overrides)
    mirror = chosen.environment.mirror
    names = sorted(chosen.data)
    for name in names:
        ingest_data_set(name, mirror=str(mirror) if mirror else None)
    return names
