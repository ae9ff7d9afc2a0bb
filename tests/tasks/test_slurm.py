"""Runs on Slurm: a real cluster of one node, jobs that are requeued and killed, and the bytes of local runs."""

import json
import os
import shutil
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import flows.train
import tasks.slurm
import tasks.slurm_training
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError
from reread.storage.run_folder import RESULT
from reread.storage.source import ROOT
from reread.tracking.runs import open_tracking
from reread.training.launcher import TrainingFailed, run_training, training_command
from tasks.preprocess import preprocess
from tasks.slurm import Run, Task, sbatch_options, submit, task_states, wait_for
from tasks.slurm_training import FOLDER, parameters, train_on_slurm, write_job
from tasks.train import train
from tests.reread.commands.conftest import make_folder
from tests.reread.training.outcome import outcome
from tests.tasks import slurm_node

pytestmark = pytest.mark.debian
LONGER = ["training.max_epochs=16", "training.patience=16"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    if reason := slurm_node.missing():
        pytest.skip(reason)
    with slurm_node.slurm_node(tmp_path_factory.mktemp("cluster") / "slurm") as variables:
        yield variables


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_databases):
    """A project folder to work in, with this checkout's source."""
    shutil.copy2(empty_databases / "mlflow.db", tmp_path)
    monkeypatch.chdir(make_folder(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path


def jobs_of(overrides, **environment):
    plan = make_plan("tiny", ["densenet-relu", "densenet-swish"], [0], overrides)
    prepared = {key: preprocess.fn(about) for key, about in plan.preparations().items()}
    return plan.jobs(prepared)


def suspend_after_two_epochs(job):
    """Suspend the process that trains a job, and return it. Slurm resumes it to end it."""
    history, deadline = job.run_directory / "history.csv", time.monotonic() + 60
    while not history.is_file() or len(history.read_text().splitlines()) <= 2:
        assert time.monotonic() < deadline, [path.read_text() for path in FOLDER.glob("*.out")]
        time.sleep(0.02)
    process = trainer(job)
    process.suspend()
    assert not (job.run_directory / RESULT).exists()
    return process


def trainer(job):
    """The process that trains a job, in this folder, and none that it forks."""
    processes = [
        process for process in psutil.process_iter(["cmdline", "cwd"])
        if str(job.file) in (process.info["cmdline"] or ())
        and process.info["cmdline"][1:3] == ["-m", "reread.training"]
        and process.info["cwd"] == os.getcwd()
    ]  # fmt: skip
    return min(processes, key=psutil.Process.create_time)


def start_requeued_jobs(ended):
    """Start what is queued again at once, until ``ended``: Slurm waits two minutes."""
    while not ended.wait(0.5):
        listed = subprocess.run(["squeue", "--noheader", "--format=%A %r"], capture_output=True, text=True).stdout
        for number, reason in (line.split(maxsplit=1) for line in listed.splitlines()):
            if reason == "BeginTime":
                subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], capture_output=True)


def test_jobs_that_are_requeued_or_killed_end_with_the_bytes_of_local_runs(cluster, folder, monkeypatch, capsys):
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    jobs = jobs_of(LONGER)
    for job in jobs:
        write_job(job)
    first, _ = submit([str(job.file) for job in jobs], training_command(jobs[0]), parameters(jobs, {}), FOLDER)
    # One may start seconds after the other, which would train on to its end.
    with ThreadPoolExecutor(2) as pool:
        _, second = pool.map(suspend_after_two_epochs, jobs)
    # What preemption does.
    subprocess.run(["scontrol", "requeue", first.name], check=True)
    second.kill()

    # Whoever submitted them is gone: the next call waits for what is queued.
    ended = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start_requeued_jobs, ended)
        try:
            train_on_slurm.fn(jobs, {}, poll_seconds=0.5)
        finally:
            ended.set()
    assert len(list(FOLDER.glob("*.json"))) == 1
    said = capsys.readouterr().out
    for job in jobs:
        assert "resumed after epoch" in (job.run_directory / "log.txt").read_text()
        local = replace(job, run_directory=Path("local") / job.run_key)
        local.run_directory.mkdir(parents=True)
        run_training(local, lambda event: None)
        assert outcome(job.run_directory) == outcome(local.run_directory)
        train.fn(job)
    tracked = open_tracking().client.search_runs([open_tracking().experiment("tiny")], "tags.seed = '0'")
    assert [run.info.status for run in tracked] == ["FINISHED"] * 2
    assert "2 runs on Slurm" in said


def test_a_run_that_fails_is_named_with_its_log_and_submitted_again(cluster, folder, monkeypatch):
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    jobs = jobs_of(["training.max_epochs=2"])
    hidden = jobs[0].prepared.rename(folder / "hidden")
    with pytest.raises(TrainingFailed, match=r"2 of 2 runs .*densenet-relu seed 0 .*\.slurm/.*_0_0_log.out"):
        train_on_slurm.fn(jobs, {"job_name": "both"}, runs_per_job=2, poll_seconds=0.2)
    (log,) = FOLDER.glob("*_log.out")
    assert log.read_text().count("error: ") == 2
    shutil.move(hidden, jobs[0].prepared)
    train_on_slurm.fn(jobs, {}, runs_per_job=2, poll_seconds=0.2)
    assert [json.loads(path.read_text())["tasks"] for path in FOLDER.glob("*.json")] == [
        [[str(job.file) for job in jobs]]
    ] * 2


def test_a_task_has_room_for_the_largest_of_its_jobs(folder):
    jobs = jobs_of(["variants.densenet-swish.training.threads=6"])
    assert [job.training["threads"] for job in jobs] == [1, 6]
    for ordered in (jobs, jobs[::-1]):
        assert parameters(ordered, {})["cpus_per_task"] == 6
    on_gpu = replace(jobs[1], machine={"cuda": "13.0"}, processes=2)
    chosen = parameters([jobs[0], on_gpu], {})
    assert (chosen["cpus_per_task"], chosen["gpus_per_node"]) == (12, 2)
    assert "gpus_per_node" not in parameters(jobs, {})


def test_a_wrong_option_and_a_machine_without_slurm_are_refused(folder, monkeypatch):
    (job, _) = jobs_of([])
    with pytest.raises(InputError, match="'gpus'"):
        parameters([job], {"gpus": 1})
    chosen = parameters([replace(job, processes=2, machine={"cuda": "13.0"})], {"time": 5, "partition": "large"})
    assert (chosen["gpus_per_node"], chosen["time"], chosen["partition"]) == (2, 5, "large")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="sbatch"):
        train_on_slurm.fn([job], {})


def test_a_run_is_waited_for_until_slurm_says_that_it_failed(monkeypatch):
    task = Task("7_0", ("job.json",), Path("log"))
    shown, finished = [], []
    run = Run("job.json", lambda: bool(finished) and not shown)

    def wait(*states, ends_with=None):
        """Return how many of the states were left when waiting ended; the run has a result after the last."""
        shown[:] = states
        finished[:] = [ends_with] if ends_with else []
        tasks.slurm.wait_for([run], {run.file: task}, poll_seconds=0.001)
        return len(shown)

    monkeypatch.setattr(tasks.slurm, "task_states", lambda: {"7_0": state} if (state := shown.pop(0)) else {})
    # Slurm may know nothing of a task for a while, and queue it again.
    assert wait(*["running", None, "completing", None] * 50, "requeued", "completed", ends_with="result") == 0
    # Which state a task has that is forgotten, is not known: its result may come.
    assert wait(*[None] * 50, ends_with="result") == 0
    for state in ("failed", "cancelled", "timeout", "out_of_memory"):
        assert wait("running", state, "never asked") == 1
    monkeypatch.setattr(tasks.slurm, "SECONDS_UNTIL_SEEN", 0.05)
    assert wait("running", *["completed"] * 1000) > 0


@pytest.mark.parametrize("alone", [False, True])
def test_tasks_that_are_cancelled_before_they_start_are_not_called_completed(
    cluster, folder, monkeypatch, capsys, alone
):
    """Slurm lists them as one task without a number, or not at all."""
    for name, value in cluster.items():
        monkeypatch.setenv(name, value)
    submitted = submit(["a", "b", "c", "d"], ["sh", "-c", "sleep 600"], sbatch_options({}, {}), FOLDER)
    array, watched = submitted[0].name.partition("_")[0], {task.files[0]: task for task in submitted}
    while [task_states().get(task.name) for task in submitted[:2]] != ["running"] * 2:
        time.sleep(0.1)
    subprocess.run(["scancel", f"{array}_2" if alone else "--user=root"], check=True)
    runs, states = [Run(file, lambda: False) for file in watched], "4 cancelled"
    if alone:
        states = "1 no longer known to Slurm"
        runs = runs[2:3]
        monkeypatch.setattr(tasks.slurm, "SECONDS_UNTIL_SEEN", 0.5)
    wait_for(runs, watched, 0.1)
    said = capsys.readouterr().out
    assert states in said and "completed" not in said
    subprocess.run(["scancel", array], check=True)
    if alone:
        # A cluster that has an accounting knows what it was.
        Path("sacct").write_text(f"#!/bin/sh\necho '{array}_2|CANCELLED by 0'\n")
        Path("sacct").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        wait_for(runs, watched, 60)
        assert "1 cancelled" in capsys.readouterr().out


class Stop(Exception):
    """Raised where jobs would be submitted."""


def test_the_flow_submits_what_the_environment_sends_to_slurm(folder, monkeypatch):
    def stop(jobs, options, runs_per_job, fresh):
        assert (len(jobs), options, runs_per_job) == (2, {"partition": "long"}, 3)
        raise Stop

    monkeypatch.setenv("REREAD_EXECUTOR", "slurm")
    monkeypatch.setenv("REREAD_SLURM", '{"partition": "long"}')
    monkeypatch.setenv("REREAD_RUNS_PER_JOB", "3")
    monkeypatch.setattr(tasks.slurm_training, "train_on_slurm", stop)
    monkeypatch.setattr(flows.train, "preprocess", lambda plan: {})
    jobs_of([])
    plan = make_plan("tiny", ["densenet-relu", "densenet-swish"], [0])
    with pytest.raises(Stop):
        flows.train.train.fn(plan=plan)
