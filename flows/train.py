"""Flow: train the variants of an experiment on each of its seeds, several at a time.

By deployment (`make serve` first):

prefect deployment run train/variant -p experiment=default -p variants='["han"]' -p seeds='[0, 1]' --watch
"""

from typing import Any

from prefect.futures import PrefectFuture
from prefect.futures import wait as wait_for
from prefect.task_runners import ThreadPoolTaskRunner

from flows.definition import project_flow
from flows.parameters import Experiment, Fresh, GivenArrays, GivenPlan, Overrides, Seeds, Variants, Wait, plan_of
from flows.preprocess import preprocess
from reread.planning.environment import Environment
from reread.planning.reach import plan_reach, reach_lines
from reread.planning.search import rounds
from reread.planning.tuning import other_settings, published
from reread.storage.job import Job
from reread.storage.locks import reserve
from reread.tracking.recording import settle, unrecorded
from reread.training.launcher import allow_training, kept_processes, stop_training
from tasks.board import BOARD
from tasks.liveness import close_dead_flow_runs
from tasks.progress import say
from tasks.recording import recording_in_background
from tasks.train import reuse
from tasks.train import train as train_run

STOP_SECONDS = 30


@project_flow("train")
def train(
    experiment: Experiment = "default",
    variants: Variants = None,
    seeds: Seeds = None,
    overrides: Overrides = None,
    fresh: Fresh = False,
    wait: Wait = True,
    plan: GivenPlan = None,
    prepared: GivenArrays = None,
) -> list[str]:
    """Train the runs of an experiment, or of some variants and seeds; return their folders in runs/.

    A run that another process trains is waited for, or fails unless ``wait``. When one fails the others still finish,
    and then the flow fails.
    """
    allow_training()
    chosen = plan_of(plan, experiment, variants, seeds, overrides)
    if fresh:
        chosen = chosen.without_published()
    for line in [*reach_lines(plan_reach(chosen)), *other_settings(chosen, published(chosen))]:
        say(line, summary=True)
    # What a kill left running in Prefect and MLflow is closed first, and what waited for MLflow is recorded.
    close_dead_flow_runs(say)
    settle(chosen.environment, say)
    folders = preprocess(plan=chosen) if prepared is None else prepared
    for line in chosen.of_older_code(folders):
        say(line, summary=True)
    each = f"{len(chosen.seeds)} {'seed' if len(chosen.seeds) == 1 else 'seeds'}"
    if chosen.folds is not None:
        each = f"{chosen.folds} folds of {each}"
        say(
            f"{chosen.name}: each fold of {' and '.join(chosen.data)} is the test split in turn; the split that the "
            "data have is not used, so scores do not compare with those on it",
            summary=True,
        )
    workers = chosen.environment.workers
    names = ", ".join(chosen.variants)
    if chosen.trials:
        names = f"{len(chosen.variants)} trials of {', '.join(chosen.trials)}"
    say(f"{chosen.name}: {names} on {each}, {workers} {'run' if workers == 1 else 'runs'} at a time", summary=True)
    directories: list[str] = []
    with kept_processes(), recording_in_background():
        for jobs in rounds(chosen, folders):
            directories += _train_jobs(jobs, chosen.environment, fresh, wait)
    if unrecorded(chosen.environment.runs):
        settle(chosen.environment, say)
    return directories


def _train_jobs(jobs: list[Job], environment: Environment, fresh: bool, wait: bool) -> list[str]:
    """Train jobs that are not finished, on Slurm or several at a time here; return the folders of all runs."""
    reserve(job.run_directory for job in jobs)
    if environment.executor == "slurm":
        from tasks.slurm_training import train_on_slurm

        train_on_slurm(jobs, environment.slurm, environment.runs_per_job, fresh)
        fresh = False
    BOARD.expect(jobs, environment.workers)
    finished = [] if fresh else reuse(jobs)
    unfinished = [job for job in jobs if str(job.run_directory) not in finished]
    runner: ThreadPoolTaskRunner[Any] = ThreadPoolTaskRunner(max_workers=environment.workers)
    with runner:
        options = {"fresh": fresh, "wait": wait}
        futures: list[PrefectFuture[str]] = [
            runner.submit(train_run.task, {"job": job, **options}) for job in unfinished
        ]
        try:
            wait_for(futures)
        except BaseException:
            # Cancelled or interrupted: the tasks' threads end when their processes do, then tell Prefect and MLflow.
            stop_training()
            wait_for(futures, timeout=STOP_SECONDS)
            raise
    for future in futures:
        future.result()
    return [str(job.run_directory) for job in jobs]
