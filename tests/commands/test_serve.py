"""`make serve` and `make ui` with real servers, in a copy of the project."""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import replace
from urllib.error import HTTPError

import pytest
from mlflow import MlflowClient

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow")
# The tiny experiment.
VARIANTS, SEEDS, EPOCHS = ("han", "gru-flat", "densenet-relu", "densenet-swish"), ("0",), 3
LEFT = '"variant": "densenet-swish"'


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def call(url: str, body: object | None = None) -> object:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if answer.headers["Content-Type"].startswith("application/json") else text.decode()


def wait_for(flow_run: str, state: str) -> dict:
    """Return a flow run once it is in a state."""
    deadline = time.monotonic() + 120
    while (found := call(flow_run))["state_type"] != state:
        assert time.monotonic() < deadline and found["state_type"] != "COMPLETED", found
        time.sleep(0.2)
    return found


@contextmanager
def started(project, *command: str, until: str):
    """A command of the project in the background, from when it says ``until``; stopped afterwards, by exit code 0."""
    output = project.directory.parent / f"{command[-1]}.txt"
    with open(output, "w") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=project.directory,
            env={**project.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            while until not in output.read_text():
                assert process.poll() is None, output.read_text()
                time.sleep(0.2)
            yield process, output
        finally:
            process.terminate()
            assert process.wait(60) == 0, output.read_text()


@pytest.fixture
def almost_finished(finished, empty_databases, tmp_path):
    """A copy of the project in which one run of the tiny experiment is left to train, and MLflow has none."""
    directory = tmp_path / "project"
    # Another test may be reading what is left out.
    left_out = shutil.ignore_patterns("mlflow.db*", "mlartifacts", ".prefect", ".locks", "__pycache__")
    shutil.copytree(finished.directory, directory, ignore=left_out)
    (run,) = [path.parent for path in directory.glob("runs/*/job.json") if LEFT in path.read_text()]
    shutil.rmtree(run)
    shutil.copytree(empty_databases, directory, dirs_exist_ok=True)
    for origin in directory.glob("runs/*/origin.json"):
        origin.unlink()
    return replace(finished, directory=directory)


def test_a_deployment_runs_the_tiny_experiment_and_the_pages_show_it(almost_finished):
    project = almost_finished
    ports = {"prefect": str(free_port()), "mlflow": str(free_port())}
    page = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    api = f"{page['prefect']}/api"
    serve = ["-m", "commands", "serve", "--prefect-port", ports["prefect"]]
    with started(project, *serve, until="Ctrl-C") as (_, output):
        printed = output.read_text()
        assert f"PREFECT_API_URL={api} .venv/bin/prefect deployment run pipeline/default --watch" in printed
        deployments = {one["name"]: one for one in call(f"{api}/deployments/filter", {})}
        assert set(deployments) == {"default", "nightly", "variant"}
        assert [one["active"] for one in deployments["nightly"]["schedules"]] == [False]
        assert deployments["variant"]["parameters"] == {"experiment": "default", "variants": ["han"]}

        home = {"PREFECT_API_URL": api, "PREFECT_HOME": str(project.directory / ".prefect")}
        run = ["-m", "prefect", "deployment", "run", "pipeline/default", "-p", "experiment=tiny", "--watch"]
        done = project.run("python", *run, **home)
        assert "finished successfully in 'Completed'" in done.stdout

        # An experiment that does not exist is refused at once; a variant that does not, in the first words of the run.
        create = f"{api}/deployments/{deployments['variant']['id']}/create_flow_run"
        with pytest.raises(HTTPError, match="409"):
            call(create, {"parameters": {"experiment": "tinny"}})
        wrong = call(
            create, {"parameters": {"experiment": "tiny", "variants": ["hat"]}, "state": {"type": "SCHEDULED"}}
        )
        failed = wait_for(f"{api}/flow_runs/{wrong['id']}", "FAILED")
        assert failed["state"]["message"].startswith("unknown name 'hat'") and "han" in failed["state"]["message"]

        by_deployment = {"flow_runs": {"deployment_id": {"any_": [deployments["default"]["id"]]}}}
        (flow_run,) = call(f"{api}/flow_runs/filter", by_deployment)
        assert flow_run["state_type"] == "COMPLETED"
        artifacts = call(f"{api}/artifacts/filter", {"limit": 200})
        shown = {one["key"]: one for one in artifacts}
        # A run of a second or two has no bar.
        bar = shown.pop("tiny-densenet-swish-0-epochs", {"data": 100})
        assert bar["data"] == 100 and set(shown) == {"tiny-variants", "tiny-verdicts", "tiny-report"}
        assert {shown[f"tiny-{one}"]["flow_run_id"] for one in ("variants", "verdicts", "report")} == {flow_run["id"]}
        assert "/artifacts/report.html" in shown["tiny-report"]["data"]
        logs = call(f"{api}/logs/filter", {"logs": {"flow_run_id": {"any_": [flow_run["id"]]}}})
        lines = "\n".join(one["message"] for one in logs)
        assert all(f"{variant} seed 0: validation 0." in lines for variant in VARIANTS)
        assert "inconclusive: A hierarchical attention network" in lines and "reports/tiny/report.html" in lines
        flow_runs = call(f"{api}/flow_runs/filter", {})
        assert {one["name"] for one in flow_runs if one["id"] != wrong["id"]} == {"tiny"}
        flow_runs = {one["id"] for one in flow_runs}
        # Prefect's page must ask its own port, not 4200.
        assert call(f"{page['prefect']}/ui-settings")["api_url"] == api

        # `make ui` beside `make serve`: MLflow is started, Prefect is there, and either Ctrl-C leaves the other alone.
        ui = ["-m", "commands", "ui", "--mlflow-port", ports["mlflow"], "--prefect-port", ports["prefect"]]
        with started(project, *ui, until="Ctrl-C") as (pages, output):
            assert page["mlflow"] in output.read_text() and page["prefect"] in output.read_text()
            assert "<html" in call(page["mlflow"]).lower()
            again = project.run("python", *ui)
            assert "nothing to do" in again.stdout and page["mlflow"] in again.stdout
            check_runs(MlflowClient(page["mlflow"]), flow_runs)
            pages.send_signal(signal.SIGINT)
        assert call(f"{api}/health") is True
    assert project.processes() == {}
    assert (project.directory / "reports/tiny/report.html").is_file()


def check_runs(client: MlflowClient, flow_runs: set[str]) -> None:
    """MLflow has each (variant, seed) of tiny, finished, by a flow run of ours, with its epochs and its files."""
    experiment = client.get_experiment_by_name("tiny").experiment_id
    children = [run for run in client.search_runs([experiment]) if "seed" in run.data.tags]
    told = sorted((run.data.params["variant"], run.data.params["seed"]) for run in children)
    assert told == sorted((variant, seed) for variant in VARIANTS for seed in SEEDS)
    assert {run.info.status for run in children} == {"FINISHED"}
    flow_run = {run.data.tags["prefect.flow_run"] for run in children if "prefect.flow_run" in run.data.tags}
    assert len(flow_run) == 1 and flow_run <= flow_runs
    first = children[0].info.run_id
    assert len(client.get_metric_history(first, "training_loss")) == EPOCHS
    assert "result.json" in [file.path for file in client.list_artifacts(first)]


def test_a_killed_parent_leaves_no_server(project):
    port = free_port()
    with open(project.directory.parent / "ui.txt", "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "commands", "ui", "--prefect-port", str(port)],
            cwd=project.directory,
            env={**project.environment, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
            stdout=file,
            stderr=file,
        )
        while not any("prefect server start" in " ".join(one) for one in project.processes().values()):
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while project.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert project.processes() == {}


def test_a_port_in_use_is_reported_in_one_line(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command in ("ui", "serve"):
            mlflow = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
            done = project.run("python", "-m", "commands", command, "--prefect-port", str(port), code=2, **mlflow)
            assert done.stderr.count("\n") == 1 and f"port {port}" in done.stderr and "--prefect-port" in done.stderr


def test_servers_that_the_environment_names_are_only_printed(project):
    named = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PREFECT_API_URL": "http://127.0.0.1:8/api"}
    done = project.run("python", "-m", "commands", "ui", **named)
    assert "http://127.0.0.1:9 " in done.stdout and "http://127.0.0.1:8 " in done.stdout
    assert project.processes() == {}


def test_a_server_that_does_not_come_up_or_answer_is_reported_in_one_line(project):
    named = {"PREFECT_API_URL": "http://127.0.0.1:8/api"}
    done = project.run("python", "-m", "commands", "serve", code=2, **named)
    assert done.stderr.count("\n") == 1 and "PREFECT_API_URL=http://127.0.0.1:8/api does not answer" in done.stderr

    broken = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PREFECT_API_DATABASE_CONNECTION_URL": "nonsense://"}
    done = project.run("python", "-m", "commands", "ui", "--prefect-port", str(free_port()), code=1, **broken)
    assert done.stderr.count("\n") == 1 and "Prefect has ended with exit code" in done.stderr
    assert "server.log" in done.stderr
    assert project.processes() == {}
