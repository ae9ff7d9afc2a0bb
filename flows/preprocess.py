"""Flow: prepare the arrays that an experiment's networks read.

reread preprocess
"""

from prefect import flow

from planning.experiment import load_experiment
from tasks.preprocess import preprocess as preprocess_data_set


@flow(name="preprocess", log_prints=True)
def preprocess(experiment: str = "default", data: list[str] | None = None, fresh: bool = False) -> dict[str, str]:
    """Prepare the data sets of ``experiment``, or those named in ``data``; return the folder of each."""
    names = sorted(load_experiment(experiment).preprocessing) if data is None else data
    return {name: preprocess_data_set(experiment, name, fresh=fresh) for name in names}
