"""Flow: bring the raw data of an experiment into data/ and check it against the manifest.

reread data
"""

from prefect import flow

from planning.experiment import load_experiment
from tasks.ingest import ingest as ingest_data_set


@flow(name="ingest", log_prints=True)
def ingest(experiment: str = "default", data: list[str] | None = None) -> list[str]:
    """Ingest the data sets of ``experiment``, or those named in ``data``; return their names."""
    names = sorted(load_experiment(experiment).preprocessing) if data is None else data
    for name in names:
        ingest_data_set(name)
    return names
