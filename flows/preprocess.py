"""Flow: prepare the arrays that an experiment's networks read."""

from flows.definition import project_flow
from flows.parameters import Experiment, Fresh, GivenPlan, Overrides, Seeds, Variants, plan_of
from reread.storage.locks import reserve
from tasks.preprocess import preprocess as preprocess_data_set


@project_flow("preprocess")
def preprocess(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    fresh: Fresh = False,
    plan: GivenPlan = None,
) -> dict[str, str]:
    """Prepare the arrays of an experiment; return the folder of each by its prepared key."""
    preparations = plan_of(plan, experiment, variants, seeds, overrides).preparations()
    reserve(about["directory"] for about in preparations.values())
    return {key: preprocess_data_set(about, fresh=fresh) for key, about in preparations.items()}
