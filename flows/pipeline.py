"""Flow: an experiment from raw data to verdicts. What `make run` and the deployments call.

reread run
"""

from prefect import flow

from flows.evaluate import evaluate
from flows.ingest import ingest
from flows.train import train
from planning.experiment import load_experiment
from planning.jobs import check


@flow(name="pipeline", log_prints=True)
def pipeline(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    fresh: bool = False,
) -> str:
    """Ingest, preprocess, train and evaluate ``experiment``; return the folder of its report.

    ``variants`` and ``seeds`` select among the experiment's. Finished runs are taken up unless ``fresh``.
    """
    chosen = load_experiment(experiment).select(variants, seeds)
    check(chosen)
    ingest(experiment, sorted(chosen.preprocessing))
    train(experiment, variants, seeds, fresh)
    return evaluate(experiment, variants, seeds)
