"""Flow: an experiment from raw data to verdicts. What `make run` and the deployments call."""

from pathlib import Path

from flows.definition import project_flow
from flows.evaluate import evaluate
from flows.ingest import ingest
from flows.parameters import Experiment, Fresh, GivenPlan, Overrides, Seeds, Variants, Wait, plan_of
from flows.preprocess import preprocess
from flows.train import train
from reread.planning.resolve import with_data
from tasks.show import show_results


@project_flow("pipeline")
def pipeline(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    fresh: Fresh = False,
    wait: Wait = True,
    plan: GivenPlan = None,
) -> str:
    """Ingest, preprocess, train and evaluate an experiment; return the folder of its report.

    ``variants``, ``seeds`` and ``overrides`` (training.learning_rate=0.02) select and change what the experiment's
    files say; a command hands down its ``plan`` instead. Finished runs are reused unless ``fresh``. A run that
    another process trains is waited for, or fails unless ``wait``.
    """
    chosen = plan_of(plan, experiment, variants, seeds, overrides)
    ingest(plan=chosen)
    chosen = with_data(chosen)
    prepared = preprocess(plan=chosen)
    train(plan=chosen, fresh=fresh, wait=wait, prepared=prepared)
    report = evaluate(plan=chosen, prepared=prepared)
    show_results(Path(report))
    return report
