"""A flow that is killed or interrupted leaves no process behind, loses no whole epoch, and goes on where it was."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from mlflow import MlflowClient

from reread.planning.resolve import make_plan
from tasks.preprocess import preprocess
from tasks.train import train
from tests.servers import free_port

EPOCHS = 40
ARGUMENTS = ["--experiment", "tiny", "--variant", "densenet-swish", "--seed", "0"]


def lengthen(project) -> None:
    """Enough epochs that a signal comes before the last."""
    project.edit(
        "experiments/tiny.yaml",
        "densenet: {network: {depth: 10, growth_rate: 4}, training: {max_epochs: 3}}",
        f"densenet: {{network: {{depth: 10, growth_rate: 4}}, training: {{max_epochs: {EPOCHS}, patience: {EPOCHS}}}}}",
    )


def start(project) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "reread", "train", *ARGUMENTS],
        cwd=project.directory,
        env=project.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def wait_for_epoch(project, epoch: int, process: subprocess.Popen) -> Path:
    """Wait until a run has a checkpoint of ``epoch`` or later; return its folder."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.stdout.read()
        for history in (project.directory / "runs").glob("*/history.csv"):
            if len(history.read_text().splitlines()) > epoch:
                return history.parent
        time.sleep(0.05)
    raise AssertionError("no run came so far in two minutes")


def trainers(project) -> list[int]:
    """Ids of the training processes of this copy of the project."""
    return [process for process, command in project.processes().items() if "reread.training" in command]


def wait_until_gone(project) -> None:
    deadline = time.monotonic() + 30
    while trainers(project):
        assert time.monotonic() < deadline, "a training process outlived its launcher"
        time.sleep(0.1)


def child_runs(project, database: str = "mlflow.db") -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{project.directory / database}")
    known = filter(None, [client.get_experiment_by_name("tiny")])
    runs = (run for experiment in known for run in client.search_runs([experiment.experiment_id]))
    return [run for run in runs if "run_key" in run.data.tags]


def wait_until_recorded(project) -> None:
    """Wait until MLflow has the run that trains, which its first epochs may precede."""
    deadline = time.monotonic() + 60
    while not child_runs(project):
        assert time.monotonic() < deadline, "no run was recorded"
        time.sleep(0.05)


# `reread train --no-cache` whose first attempt fails, with all checkpoints written, by an error that may pass.
FAILS_ONCE = """
import sys
from pathlib import Path
import tasks.train
from reread.commands.app import main
train, failed = tasks.train.run_training, []

def fail_once(job, follow, lock):
    train(job, follow, lock)
    if not failed:
        failed.append(job)
        (job.run_directory / "result.json").unlink()
        raise ConnectionError("the network is away")

tasks.train.run_training = fail_once
main(["train", *sys.argv[1:], "--no-cache"])
"""


def test_a_retry_of_a_run_that_was_started_afresh_keeps_its_checkpoints(project, prefect_api):
    project = project.using(prefect_api)
    project.run("python", "-c", FAILS_ONCE, *ARGUMENTS)
    (log,) = project.directory.glob("runs/*/log.txt")
    first, _ = log.read_text().split("resumed after epoch 3")
    assert first.count("validation loss") == 3
    assert (log.parent / "result.json").is_file()


@pytest.fixture
def poor(make_project):
    """A copy in a folder with a space and an umlaut, without git, HOME and a language."""
    project = make_project("Läufe von heute")
    project.environment["LC_ALL"] = "C"
    project.environment["PATH"] = str(Path(sys.executable).parent)
    project.environment.pop("HOME", None)
    assert shutil.which("git", path=project.environment["PATH"]) is None
    return project


def test_a_killed_flow_resumes_from_its_last_epoch_and_ends_with_the_same_weights(poor, monkeypatch):
    project = poor
    lengthen(project)
    flow = start(project)
    run = wait_for_epoch(project, 3, flow)
    wait_until_recorded(project)
    os.kill(flow.pid, signal.SIGKILL)
    # Until nobody has its output open any more: neither a training process nor the session's server.
    flow.communicate(timeout=60)
    wait_until_gone(project)
    assert not (run / "result.json").exists()
    assert [child.info.status for child in child_runs(project)] == ["RUNNING"]

    project.run("python", "-m", "reread", "train", *ARGUMENTS)
    assert "resumed after epoch" in (run / "log.txt").read_text()
    # The second flow has closed what was left of the first.
    with contextlib.closing(sqlite3.connect(project.directory / ".prefect/prefect.db")) as database:
        states = Counter(state for (state,) in database.execute("SELECT state_type FROM flow_run"))
    assert states["CRASHED"] == 1 and set(states) == {"CRASHED", "COMPLETED"}
    assert not list((project.directory / ".locks/flow-runs").iterdir())
    (finished,) = child_runs(project)
    assert finished.info.status == "FINISHED"
    client = MlflowClient(tracking_uri=f"sqlite:///{project.directory / 'mlflow.db'}")
    steps = [metric.step for metric in client.get_metric_history(finished.info.run_id, "validation_loss")]
    assert len(steps) == len(set(steps)) >= EPOCHS

    # Trained without a break, in another folder, with an MLflow that never was up: the same weights.
    monkeypatch.chdir(project.directory)
    monkeypatch.setenv("REREAD_RUNS", "unbroken")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    plan = make_plan("tiny", ["densenet-swish"], [0])
    train.fn(*plan.jobs({key: preprocess.fn(about) for key, about in plan.preparations().items()}))
    (waiting,) = (project.directory / "unbroken/.unrecorded").iterdir()
    assert json.loads(waiting.read_text())["run"] == run.name
    # One that is up has every epoch, when it ended.
    up = f"sqlite:///{project.directory / 'up.db'}"
    project.environment.update(REREAD_RUNS="unbroken", MLFLOW_TRACKING_URI=up)
    assert run.name in project.run("python", "-m", "reread", "reconcile").stdout
    assert not waiting.exists()
    (late,) = child_runs(project, "up.db")
    times = json.loads((project.directory / "unbroken" / run.name / "times.json").read_text())
    client = MlflowClient(tracking_uri=up)
    metrics = client.get_metric_history(late.info.run_id, "validation_loss")
    assert {str(metric.step): metric.timestamp for metric in metrics} == times["epochs"] and len(metrics) >= EPOCHS
    assert (late.info.status, late.info.start_time) == ("FINISHED", times["began"])
    results = [
        json.loads((folder / run.name / "result.json").read_text())
        for folder in (run.parent, project.directory / "unbroken")
    ]
    assert results[0] == results[1]


def test_a_signal_stops_everything_and_the_next_start_resumes(project):
    lengthen(project)
    epochs = [0]
    # SIGTERM to the command, and what Ctrl-C and a closed terminal do: the whole group has the signal.
    for send, number in ((os.kill, signal.SIGTERM), (os.killpg, signal.SIGINT), (os.killpg, signal.SIGHUP)):
        flow = start(project)
        # An epoch's line of history is written before its checkpoint.
        run = wait_for_epoch(project, epochs[-1] + 2, flow)
        send(flow.pid, number)
        said, _ = flow.communicate(timeout=60)
        wait_until_gone(project)
        assert flow.returncode == 130 and "run the same command again to resume" in said, said
        assert "Traceback" not in said and project.processes() == {}, said
        assert not (run / "result.json").exists()
        assert [child.info.status for child in child_runs(project)] == ["KILLED"]
        # A checkpoint that was being removed has a name that begins with a dot.
        epochs.append(max(int(path.name) for path in run.glob("checkpoints/[0-9]*")))
        assert epochs[-1] > epochs[-2]
    assert f"resumed after epoch {epochs[1]}\n" in (run / "log.txt").read_text()
    with contextlib.closing(sqlite3.connect(project.directory / ".prefect/prefect.db")) as database:
        states = list(database.execute("SELECT state_type FROM flow_run WHERE parent_task_run_id IS NULL"))
    assert states == [("CANCELLED",)] * 3


def states_in_prefect(project) -> set[str]:
    with contextlib.closing(sqlite3.connect(project.directory / ".prefect/prefect.db")) as database:
        tables = [database.execute(f"SELECT state_type FROM {table}") for table in ("flow_run", "task_run")]
        return {state for rows in tables for (state,) in rows}


def test_a_flow_ends_in_one_line_soon_after_prefects_server_and_is_closed_later(project):
    lengthen(project)
    flow = start(project)
    run = wait_for_epoch(project, 2, flow)
    wait_until_recorded(project)
    (server,) = (number for number, words in project.processes().items() if "reread.commands.prefect_server" in words)
    os.kill(server, signal.SIGKILL)
    said, _ = flow.communicate(timeout=60)
    assert flow.returncode == 1 and project.processes() == {}, said
    (line,) = (line for line in said.splitlines() if "Prefect has ended with exit code -9" in line)
    assert line == said.splitlines()[-1] and "run the same command again" in line
    assert max(map(len, said.splitlines())) < 500 and "Traceback" not in said
    assert not (run / "result.json").exists()
    assert [child.info.status for child in child_runs(project)] == ["KILLED"]
    assert "RUNNING" in states_in_prefect(project)
    said = project.run("python", "-m", "reread", "reconcile").stdout
    assert "is Crashed" in said and states_in_prefect(project) <= {"CRASHED", "COMPLETED"}
    assert not list((project.directory / ".locks/flow-runs").iterdir())


# A flow that ends while its server is away.
ENDS_ALONE = """
import sys
from flows.definition import project_flow
from reread.commands.servers import Servers, client_of, client_settings, prefect_server

with Servers() as servers:
    servers.start(server := prefect_server(int(sys.argv[1])))

    def alone():
        servers.running[0][1].kill()
        servers.running[0][1].wait()

    with client_settings({**client_of(server.port), "PREFECT_CLIENT_MAX_RETRIES": "0"}):
        project_flow("alone", lambda _: "alone")(alone)()
"""


def test_a_flow_run_whose_final_state_the_server_did_not_get_is_closed_later(project):
    project.run("python", "-c", ENDS_ALONE, str(free_port()), code=None)
    assert states_in_prefect(project) == {"RUNNING"}
    assert "is Crashed" in project.run("python", "-m", "reread", "reconcile").stdout
    assert states_in_prefect(project) == {"CRASHED"}
