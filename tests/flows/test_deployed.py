"""Deployed flows on real servers: run and shown; cancelled or killed, they leave nothing running."""

import contextlib
import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError

import psutil
import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from reread.storage.source import ROOT
from tests.conftest import Project
from tests.flows.test_survival import child_runs, trainers, wait_until_gone
from tests.servers import auth_of, call, free_port, started

# The tiny experiment.
VARIANTS, SEEDS, EPOCHS = ("han", "gru-flat", "densenet-relu", "densenet-swish"), ("0",), 3
LEFT = '"variant": "densenet-swish"'
# A run that only a signal ends.
LONG = {
    "experiment": "tiny",
    "variants": ["densenet-swish"],
    "seeds": [0],
    "overrides": ["training.max_epochs=3000", "training.patience=3000"],
}
STOP_SECONDS = 30
# A process that holds the lock of a flow run.
HOLDS = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from reread.storage.locks import file_lock
with file_lock(Path(".locks/flow-runs") / (sys.argv[1] + ".lock")):
    print("held", flush=True)
    time.sleep(600)
"""


def wait_for(condition, seconds: float = 120):
    """Return what ``condition`` returns once it is true."""
    until = time.monotonic() + seconds
    while not (outcome := condition()):
        assert time.monotonic() < until, f"{condition} is not true after {seconds} s"
        time.sleep(0.1)
    return outcome


def ask(url: str, body: object | None = None, auth: str = ""):
    """Ask Prefect's server, which answers 503 while its database is busy."""
    until = time.monotonic() + 60
    while True:
        try:
            return call(url, body, auth)
        except HTTPError as error:
            error.close()
            if error.code != 503 or time.monotonic() > until:
                raise
            time.sleep(0.5)


@pytest.fixture
def almost_finished(copy_of_finished) -> Project:
    """A copy of the project in which one run of the tiny experiment is left to train, and MLflow has none."""
    directory = copy_of_finished.directory
    (run,) = [path.parent for path in directory.glob("runs/*/job.json") if LEFT in path.read_text()]
    shutil.rmtree(run)
    return copy_of_finished


class Served:
    """A project that is served: its deployments and flow runs in Prefect, its runs in MLflow, and its processes."""

    def __init__(self, project: Project, port: int) -> None:
        self.project, self.page = project, f"http://127.0.0.1:{port}"
        self.api, self.auth = f"{self.page}/api", auth_of(project.directory)
        self.deployments = {deployment["name"]: deployment for deployment in self.ask("deployments/filter", {})}

    def ask(self, path: str, body: object | None = None):
        """Ask a path of the API, with the password of the project's folder."""
        return ask(f"{self.api}/{path}", body, self.auth)

    def create(self, deployment: str, **parameters) -> str:
        """Let a deployment run with these parameters, as its page does; return the id of the flow run."""
        body = {"parameters": parameters, "state": {"type": "SCHEDULED"}}
        return self.ask(f"deployments/{self.deployments[deployment]['id']}/create_flow_run", body)["id"]

    def state(self, flow_run: str) -> dict:
        return self.ask(f"flow_runs/{flow_run}")["state"]

    def cancel(self, flow_run: str) -> None:
        """Do as ``prefect flow-run cancel``."""
        self.ask(f"flow_runs/{flow_run}/set_state", {"state": {"type": "CANCELLING"}})

    def processes(self) -> list[psutil.Process]:
        """The worker and the processes that it started."""
        lines = self.project.processes().items()
        (worker,) = [psutil.Process(pid) for pid, line in lines if "worker" in line and "start" in line]
        return [worker, *worker.children(recursive=True)]

    def long_run(self) -> Path | None:
        """The folder of the run that only a signal ends."""
        jobs = (self.project.directory / "runs").glob("*/job.json")
        folders = [path.parent for path in jobs if '"max_epochs": 3000' in path.read_text()]
        return folders[0] if folders else None

    def trained(self, epochs: int) -> Path | None:
        """Return that folder once it has more than so many epochs and is being trained."""
        folder = self.long_run()
        history = folder and folder / "history.csv"
        long = history and history.is_file() and len(history.read_text().splitlines()) > epochs + 1
        return folder if long and trainers(self.project) else None

    def statuses(self) -> list[str]:
        """The status in MLflow of that run."""
        folder = self.long_run()
        return [run.info.status for run in child_runs(self.project) if run.data.tags["run_key"] == folder.name]


def test_deployed_flows_are_run_shown_cancelled_and_killed(almost_finished, monkeypatch):
    project, port = almost_finished, free_port()
    # A server that has lost its worker ends with 1.
    serve = ["-m", "reread", "serve", "--prefect-port", str(port)]
    with started(project, *serve, until="Ctrl-C", code=1) as (process, output):
        served = Served(project, port)
        check_deployments(served, output.read_text())
        done, wrong = run_and_refuse(served)
        check_pages(served, done, wrong)
        show_in_mlflow(served, port, monkeypatch)
        resumed, live = cancel_resume_and_kill(served)
        assert process.wait(60) == 1
        wait_until_gone(project)
    assert project.processes() == {}
    reconcile(served, resumed, live)


def check_deployments(served: Served, printed: str) -> None:
    assert f"export $(cat secret.env) PREFECT_API_URL={served.api}\n" in printed
    assert "prefect deployment run pipeline/default --watch" in printed
    assert """-p overrides='["training.learning_rate=0.03"]' --watch""" in printed
    assert set(served.deployments) == {"default", "nightly", "variant"}
    assert [schedule["active"] for schedule in served.deployments["nightly"]["schedules"]] == [False]
    assert served.deployments["variant"]["parameters"] == {"experiment": "default", "variants": ["han"]}


def run_and_refuse(served: Served) -> tuple[str, str]:
    """Run the pipeline, as the printed command does, and a flow with a wrong name; return their flow runs' ids."""
    run = f"{sys.executable} -m prefect deployment run pipeline/default -p experiment=tiny --watch"
    home = {"PREFECT_HOME": str(served.project.directory / ".prefect")}
    known = f"export $(cat secret.env) PREFECT_API_URL={served.api}"
    done = served.project.run("sh", "-c", f"{known} && {run}", **home)
    assert "finished successfully in 'Completed'" in done.stdout
    by_deployment = {"flow_runs": {"deployment_id": {"any_": [served.deployments["default"]["id"]]}}}
    (flow_run,) = served.ask("flow_runs/filter", by_deployment)
    assert flow_run["state_type"] == "COMPLETED"

    # An experiment that does not exist is refused at once; a variant that does not, in the first words of the run.
    with pytest.raises(HTTPError, match="409"):
        served.create("variant", experiment="tinny")
    wrong = served.create("variant", experiment="tiny", variants=["hat"])
    state = wait_for(lambda: (answer := served.state(wrong))["type"] in ("FAILED", "COMPLETED") and answer)
    assert state["type"] == "FAILED"
    assert state["message"].startswith("unknown name 'hat'") and "han" in state["message"]
    return flow_run["id"], wrong


def check_pages(served: Served, flow_run: str, wrong: str) -> None:
    """Prefect's pages have the artifacts, the log and the names of the flow run."""
    artifacts = served.ask("artifacts/filter", {"limit": 200})
    shown = {artifact["key"]: artifact for artifact in artifacts}
    # A run of a second or two has no bar.
    bar = shown.pop("tiny-densenet-swish-0-epochs", {"data": 100})
    assert bar["data"] == 100 and set(shown) == {"tiny-variants", "tiny-verdicts", "tiny-report"}
    assert {shown[f"tiny-{kind}"]["flow_run_id"] for kind in ("variants", "verdicts", "report")} == {flow_run}
    assert "/artifacts/report.html" in shown["tiny-report"]["data"]
    logs = served.ask("logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run]}}})
    lines = "\n".join(log["message"] for log in logs)
    assert all(f"{variant} seed 0: validation 0." in lines for variant in VARIANTS)
    assert "inconclusive: A hierarchical attention network" in lines and "reports/tiny/report.html" in lines
    flow_runs = served.ask("flow_runs/filter", {})
    assert {run["name"] for run in flow_runs if run["id"] != wrong} == {"tiny"}
    flows = {flow["id"]: flow["name"] for flow in served.ask("flows/filter", {})}
    entered = sorted(flows[run["flow_id"]] for run in flow_runs if run["id"] != wrong)
    assert entered == ["evaluate", "ingest", "pipeline", "preprocess", "train"]
    # Prefect's page must ask its own port, not 4200.
    assert call(f"{served.page}/ui-settings")["api_url"] == "/api"
    assert (served.project.directory / "reports/tiny/report.html").is_file()


def show_in_mlflow(served: Served, port: int, monkeypatch) -> None:
    """`reread ui` beside `reread serve` starts MLflow and uses that Prefect; either Ctrl-C leaves the other alone."""
    mlflow = free_port()
    flow_runs = {run["id"] for run in served.ask("flow_runs/filter", {})}
    ui = ["-m", "reread", "ui", "--mlflow-port", str(mlflow), "--prefect-port", str(port)]
    with started(served.project, *ui, until="Ctrl-C") as (pages, output):
        page = f"http://127.0.0.1:{mlflow}"
        assert page in output.read_text() and served.page in output.read_text()
        assert "<html" in call(page, auth=served.auth).lower()
        again = served.project.run("python", *ui)
        assert "nothing to do" in again.stdout and page in again.stdout
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", served.auth.removeprefix("reread:"))
        client = MlflowClient(page)
        experiment = client.get_experiment_by_name("tiny").experiment_id
        check_runs(client, [run for run in client.search_runs([experiment]) if "seed" in run.data.tags], flow_runs)
        pages.send_signal(signal.SIGINT)
    assert call(f"{served.api}/health") is True


def check_runs(client: MlflowClient, children: list[Run], flow_runs: set[str]) -> None:
    """MLflow has each (variant, seed) of tiny, finished, by a flow run of ours, with its epochs and its files."""
    pairs = sorted((run.data.params["variant"], run.data.params["seed"]) for run in children)
    assert pairs == sorted((variant, seed) for variant in VARIANTS for seed in SEEDS)
    assert {run.info.status for run in children} == {"FINISHED"}
    flow_run = {run.data.tags["prefect.flow_run"] for run in children if "prefect.flow_run" in run.data.tags}
    assert len(flow_run) == 1 and flow_run <= flow_runs
    first = children[0].info.run_id
    assert len(client.get_metric_history(first, "training_loss")) == EPOCHS
    assert "result.json" in [file.path for file in client.list_artifacts(first)]


def cancel_resume_and_kill(served: Served) -> tuple[str, str]:
    """Cancel a flow run, let another one resume its run, and kill that with the worker.

    Return the ids of the killed flow run and of one that waited for the worker.
    """
    folder = served.project.directory
    # The arrays are prepared again: the plan is resolved before.
    shutil.rmtree(folder / "prepared")
    first = served.create("variant", **LONG)
    # params.yaml is edited while the flow runs: the run keeps the plan that was resolved before.
    wait_for(lambda: list((folder / "prepared").glob("*/prepared.json")))
    params = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(params.replace("learning_rate: ", "learning_rate: 1"))
    run = wait_for(lambda: served.trained(2))
    assert json.loads((run / "job.json").read_text())["training"]["learning_rate"] < 1
    (folder / "params.yaml").write_text(params)

    served.cancel(first)
    wait_for(lambda: not trainers(served.project) and served.statuses() == ["KILLED"], STOP_SECONDS)
    # Prefect loads the flow's code again for its hooks before it names the state.
    wait_for(lambda: served.state(first)["name"] == "Cancelled" and len(served.processes()) == 1)
    checkpoints = sorted(path.name for path in run.glob("checkpoints/[0-9]*"))
    assert len(checkpoints) == 2 and not (run / "result.json").exists()

    # The same worker trains the next flow, which resumes the run; then both are killed.
    resumed = served.create("variant", **LONG)
    wait_for(lambda: served.trained(int(checkpoints[-1]) + 2))
    assert f"resumed after epoch {int(checkpoints[-1])}\n" in (run / "log.txt").read_text()
    live = served.create("variant", **LONG)
    for process in served.processes():
        if "reread.training" not in process.cmdline():
            process.kill()
    return resumed, live


def reconcile(served: Served, resumed: str, live: str) -> None:
    """`reread reconcile` closes what was killed; a flow run whose lock a process holds is alive."""
    project = served.project
    assert served.statuses() == ["RUNNING"]
    with subprocess.Popen([sys.executable, "-c", HOLDS, live], cwd=project.directory, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        settled = json.loads(project.run("python", "-m", "reread", "reconcile", "--json").stdout)
        holder.kill()
    with contextlib.closing(sqlite3.connect(project.directory / ".prefect/prefect.db")) as database:
        states = dict(database.execute("SELECT id, state_type FROM flow_run"))
    assert (states[resumed], states[live]) == ("CRASHED", "SCHEDULED")
    assert list(settled["closed"].values()) == ["KILLED"] and settled["recorded"] == [] and settled["left"] == {}
    assert set(settled["flow_runs"].values()) == {"Crashed"}
    assert served.statuses() == ["KILLED"]
