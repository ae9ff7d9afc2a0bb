"""A deployed flow that is cancelled or killed: nothing is left running, and the worker trains the next one."""

import contextlib
import json
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest

from storage.source import ROOT
from tests.commands.test_serve import call, free_port
from tests.flows.test_survival import child_runs, trainers, wait_until_gone

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
DENSENET = "densenet: {network: {depth: 10, growth_rate: 4}, training: {max_epochs: 3}}"
LONG = DENSENET.replace("max_epochs: 3", "max_epochs: 3000, patience: 3000")
STOP_SECONDS = 30
# A process that holds the lock of a flow run.
HOLDS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from storage.locks import file_lock
with file_lock(Path(".locks/flow-runs") / (sys.argv[1] + ".lock")):
    print("held", flush=True)
    time.sleep(600)
"""


def wait_for(condition, seconds: float = 120):
    """Return what ``condition`` returns once it is true."""
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, f"{condition} is not true after {seconds} s"
        time.sleep(0.1)
    return found


def statuses(project) -> list[str]:
    """The status in MLflow of each run of a variant and seed."""
    return [run.info.status for run in child_runs(project)]


def ask(url: str, body: object | None = None):
    """Ask Prefect's server, which answers 503 while its database is busy."""
    until = time.monotonic() + 60
    while True:
        try:
            return call(url, body)
        except HTTPError as error:
            error.close()
            if error.code != 503 or time.monotonic() > until:
                raise
            time.sleep(0.5)


class Deployed:
    """The deployment train/variant of a project that is served, and the run that it trains."""

    def __init__(self, project, api: str) -> None:
        self.project, self.api = project, api
        (self.deployment,) = (one for one in ask(f"{api}/deployments/filter", {}) if one["name"] == "variant")

    def run(self) -> str:
        parameters = {"experiment": "tiny", "variants": ["densenet-swish"], "seeds": [0]}
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return ask(f"{self.api}/deployments/{self.deployment['id']}/create_flow_run", body)["id"]

    def cancel(self, flow_run: str) -> None:
        """Do as ``prefect flow-run cancel``."""
        ask(f"{self.api}/flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING"}})

    def state(self, flow_run: str) -> str:
        return ask(f"{self.api}/flow_runs/{flow_run}")["state"]["name"]

    def processes(self) -> list[psutil.Process]:
        """The worker and the processes that it started."""
        lines = self.project.processes().items()
        (worker,) = [psutil.Process(pid) for pid, line in lines if "worker" in line and "start" in line]
        return [worker, *worker.children(recursive=True)]

    def trained(self, epochs: int) -> Path | None:
        """Return the run's folder once it has more than so many epochs and is being trained."""
        for path in (self.project.directory / "runs").glob("*/history.csv"):
            if len(path.read_text().splitlines()) > epochs + 1 and trainers(self.project):
                return path.parent
        return None


def test_a_deployed_flow_is_cancelled_run_again_and_killed_with_its_worker(project):
    project.edit("experiments/tiny.yaml", DENSENET, LONG)
    port, output = free_port(), project.directory.parent / "serve.txt"
    with open(output, "w") as file:
        serve = subprocess.Popen(
            [sys.executable, "-m", "commands", "serve", "--prefect-port", str(port)],
            cwd=project.directory,
            env={**project.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        wait_for(lambda: "Ctrl-C" in output.read_text())
        served = Deployed(project, f"http://127.0.0.1:{port}/api")
        first = served.run()
        # params.yaml is edited while the flow runs: the run keeps the plan that was resolved before.
        wait_for(lambda: list((project.directory / "prepared").glob("*/prepared.json")))
        params = (project.directory / "params.yaml").read_text()
        (project.directory / "params.yaml").write_text(params.replace("learning_rate: ", "learning_rate: 1"))
        folder = wait_for(lambda: served.trained(2))
        job = json.loads((folder / "job.json").read_text())
        assert job["training"]["learning_rate"] < 1
        (project.directory / "params.yaml").write_text(params)

        served.cancel(first)
        wait_for(lambda: not trainers(project) and statuses(project) == ["KILLED"], STOP_SECONDS)
        # Prefect loads the flow's code again for its hooks before it names the state.
        wait_for(lambda: served.state(first) == "Cancelled" and len(served.processes()) == 1)
        checkpoints = sorted(path.name for path in folder.glob("checkpoints/*"))
        assert len(checkpoints) == 2 and not (folder / "result.json").exists()

        # The same worker trains the next flow, which resumes the run; then both are killed.
        second = served.run()
        wait_for(lambda: served.trained(int(checkpoints[-1]) + 2))
        assert f"resumed after epoch {int(checkpoints[-1])}\n" in (folder / "log.txt").read_text()
        live = served.run()
        for process in served.processes():
            if "training" not in process.cmdline():
                process.kill()
        # A server that has lost its worker ends as well.
        assert serve.wait(60) == 1
        wait_until_gone(project)
    finally:
        serve.send_signal(signal.SIGINT)
        serve.wait(60)
    assert project.processes() == {}
    assert statuses(project) == ["RUNNING"]
    # A flow run whose lock a process holds is alive, whatever Prefect shows.
    with subprocess.Popen([sys.executable, "-c", HOLDS, live], cwd=project.directory, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        settled = json.loads(project.run("python", "-m", "commands", "reconcile", "--json").stdout)
        holder.kill()
    with contextlib.closing(sqlite3.connect(project.directory / ".prefect/prefect.db")) as database:
        states = dict(database.execute("SELECT id, state_type FROM flow_run"))
    assert (states[second], states[live]) == ("CRASHED", "SCHEDULED")
    assert list(settled["closed"].values()) == ["KILLED"] and settled["sent"] == [] and settled["left"] == {}
    assert set(settled["flow_runs"].values()) == {"Crashed"}
    assert statuses(project) == ["KILLED"]
