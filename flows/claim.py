"""Flow: the runs of a claim on commands (`reread claim FILE --flow`), a task each."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.definition import project_flow
from reread.arms.jobs import Job, make_jobs
from reread.arms.run import Running, Say, run_all
from reread.arms.settings import read_arms_file
from reread.planning.environment import Environment
from tasks import users_environment
from tasks.claim import run_command, run_commands_on_slurm
from tasks.progress import say


def name_of(parameters: Mapping[str, Any]) -> str:
    """Return the name of a flow run with these parameters: that of its claim file."""
    return Path(parameters["file"]).stem


@project_flow("claim", name_of)
def claim(
    file: str,
    seeds: list[int],
    environment: Environment,
    machine: dict[str, Any] | None = None,
    workers: int = 1,
    fresh: bool = False,
) -> None:
    """Run the commands of a claim file that are not finished, here or on Slurm, and log each in MLflow.

    machine: that runs them, as in keys; by default this one.
    """
    path = Path(file)
    jobs = make_jobs(replace(read_arms_file(path), seeds=seeds), path, machine)
    if environment.executor == "slurm":
        run_commands_on_slurm(jobs, environment.slurm, environment.runs_per_job, fresh)
        fresh = False

    def run_as_task(job: Job, running: Running, say: Say, fresh: bool) -> None:
        run_command(job, running, say, fresh, f"claim-{path.stem}")

    run_all(jobs, users_environment(), workers, say, fresh, run_as_task)
