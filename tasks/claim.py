"""Run the command of an arm and seed, and log it in MLflow; MLflow decides nothing, and its absence stops nothing."""

from pathlib import Path

from reread.arms.jobs import Job
from reread.arms.run import Running, Say, run
from reread.arms.scores import read_metrics
from reread.storage.run_folder import JOB, RESULT, TIMING
from reread.tracking.runs import open_tracking
from tasks.step import step


@step(task_run_name="{job.arm}-{job.seed}")
def run_command(job: Job, running: Running, say: Say, fresh: bool, experiment: str) -> None:
    """Run a job as ``reread.arms.run.run`` does, and log it in MLflow's ``experiment`` when it has finished."""
    run(job, running, say, fresh)
    files = [*(job.directory / name for name in (JOB, RESULT, TIMING)), job.log]
    try:
        open_tracking(Path()).command(experiment, job.record(), read_metrics(job), files)
    except Exception as error:  # whatever MLflow, its database or its server raise
        say(f"{job.name} is not in MLflow ({type(error).__name__}: {str(error).partition(chr(10))[0]})")
