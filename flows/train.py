"""Flow: train the variants of an experiment on each of its seeds, some at a time.

reread train

The same by deployment (`make serve` first):

prefect deployment run train/variant -p experiment=default -p variants='["han"]' -p seeds='[0, 1]' --watch
"""

from prefect import flow
from prefect.futures import wait
from prefect.task_runners import ThreadPoolTaskRunner

from flows.preprocess import preprocess
from planning.experiment import load_experiment
from planning.folders import runs_root
from planning.jobs import check
from storage.errors import InputError
from tasks.train import train as train_run
from tasks.train import workers
from tracking.runs import open_tracking
from training.launcher import allow_training, stop_training

STOP_SECONDS = 30


def runner() -> ThreadPoolTaskRunner:
    """As many threads as runs may train at a time; a wrong REREAD_WORKERS is refused when the flow starts."""
    try:
        return ThreadPoolTaskRunner(max_workers=workers())
    except InputError:
        return ThreadPoolTaskRunner(max_workers=1)


@flow(name="train", log_prints=True, task_runner=runner())
def train(
    experiment: str = "default",
    variants: list[str] | None = None,
    seeds: list[int] | None = None,
    fresh: bool = False,
) -> list[str]:
    """Train ``variants`` (default: all) on ``seeds`` (default: the experiment's); return the folders in runs/.

    REREAD_WORKERS says how many run at a time. When one fails the others still finish, and then the flow fails.
    """
    allow_training()
    workers()
    chosen = load_experiment(experiment).select(variants, seeds)
    check(chosen)
    # What a kill left RUNNING in MLflow is settled first.
    open_tracking().reconcile(runs_root())
    prepared = preprocess(experiment, sorted(chosen.preprocessing))
    futures = [
        train_run.submit(experiment, name, seed, prepared[variant.data], fresh)
        for seed in chosen.seeds
        for name, variant in chosen.variants.items()
    ]
    try:
        wait(futures)
    except BaseException:
        # Cancelled or interrupted: the tasks' threads end when their processes do, and then tell Prefect and MLflow.
        stop_training()
        wait(futures, timeout=STOP_SECONDS)
        raise
    return [future.result() for future in futures]
