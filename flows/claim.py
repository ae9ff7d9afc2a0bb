"""Flow: the runs of a claim on commands (`reread claim FILE --flow`), a task each."""

from dataclasses import replace
from pathlib import Path

from prefect.context import FlowRunContext

from flows.definition import project_flow
from reread.arms.jobs import Job, make_jobs
from reread.arms.run import Running, Say, run_all
from reread.arms.settings import read_arms_file
from tasks import users_environment
from tasks.claim import run_command
from tasks.progress import say


def run_name() -> str:
    """Return the name of the flow run that begins: that of its claim file."""
    context = FlowRunContext.get()
    return Path(((context and context.parameters) or {})["file"]).stem


@project_flow("claim", run_name)
def claim(file: str, seeds: list[int], workers: int = 1, fresh: bool = False) -> None:
    """Run the commands of a claim file that are not finished, and log each in MLflow."""
    path = Path(file)
    jobs = make_jobs(replace(read_arms_file(path), seeds=seeds), path)

    def run_as_task(job: Job, running: Running, say: Say, fresh: bool) -> None:
        run_command(job, running, say, fresh, f"claim-{path.stem}")

    run_all(jobs, users_environment(), workers, say, fresh, run_as_task)
