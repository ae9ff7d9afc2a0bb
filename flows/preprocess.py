"""Flow: prepare the arrays that an experiment's networks read."""

from flows.definition import project_flow
from flows.parameters import GivenPlan
from reread.storage.locks import reserve
from tasks.preprocess import preprocess as preprocess_data_set


@project_flow("preprocess")
def preprocess(plan: GivenPlan, fresh: bool = False) -> dict[str, str]:
    """Prepare the arrays of a plan; return the folder of each by its prepared key."""
    preparations = plan.preparations()
    reserve(about["directory"] for about in preparations.values())
    return {key: preprocess_data_set(about, fresh=fresh) for key, about in preparations.items()}
