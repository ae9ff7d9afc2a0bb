"""The launcher: events by a pipe of their own, one lock of the run, and stopping."""

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from reread.storage.errors import InputError
from reread.storage.job import Job
from reread.storage.locks import file_lock, holder, is_held, run_lock
from reread.storage.source import ROOT
from reread.training import launcher
from tests.reread.training.outcome import outcome
from tests.rooms import copy_rooms

ROOMS = ("storage", "batches", "goals", "kinds", "runtime", "training")


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A copy of the rooms that train, in which the training processes of this test start."""
    copy_rooms(tmp_path, "cuda_ext", "models", *(f"reread/{room}" for room in ROOMS))
    # Networks that have passed their checks in the project are not checked again.
    checked = ROOT / ".cache/checked-networks"
    checked.mkdir(parents=True, exist_ok=True)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache/checked-networks").symlink_to(checked)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return tmp_path


def read_job(path: Path, **training) -> Job:
    given = json.loads(path.read_text())
    job = Job.from_json({"data": "words", "experiment": "trial", **given})
    return replace(job, training={**job.training, "threads": 1, **training})


def test_what_a_model_prints_goes_to_the_log_and_training_is_allowed_again_after_it_was_stopped(
    bare, write_job, text_directory
):
    model = bare / "models" / "word_average.py"
    model.write_text(f"{model.read_text()}\nprint('a stray line')\n")
    job = read_job(write_job(text_directory, model="word_average"))
    events = []
    launcher.stop_training()
    try:
        with pytest.raises(launcher.TrainingStopped):
            launcher.run_training(job, events.append)
    finally:
        launcher.allow_training()
    assert events == []
    launcher.run_training(job, events.append)
    assert [event["event"] for event in events][-1] == "finished"
    assert "a stray line" in (job.run_directory / "log.txt").read_text()


def test_a_refused_job_is_an_input_error(bare, write_job, text_directory):
    job = replace(read_job(write_job(text_directory, model="word_average")), prepared=Path("nowhere"))
    with pytest.raises(InputError, match="nowhere"):
        launcher.run_training(job, lambda event: None)


def test_a_kept_process_trains_further_runs_with_the_bytes_of_a_new_one(bare, write_job, text_directory, monkeypatch):
    started, start = [], launcher.Trainer.start
    monkeypatch.setattr(launcher.Trainer, "start", lambda *given: started.append(start(*given)) or started[-1])
    first, second = (
        read_job(write_job(text_directory, f"run-{seed}", model="word_average", seed=seed)) for seed in range(2)
    )
    again = replace(second, run_directory=Path(f"{second.run_directory}-again"))
    events = []
    with launcher.kept_processes():
        for job in (first, second):
            with file_lock(run_lock(job.run_directory)) as lock:
                launcher.run_training(job, events.append, lock)
            assert not is_held(run_lock(job.run_directory))
        assert len(started) == 1 and started[0].process.poll() is None
        # A process whose run failed is not used again.
        with pytest.raises(InputError, match="nowhere"):
            launcher.run_training(replace(again, prepared=Path("nowhere")), events.append)
        launcher.run_training(again, events.append)
    assert len(started) == 2 and all(trainer.process.poll() is not None for trainer in started)
    assert [event["seed"] for event in events if event["event"] == "finished"] == [0, 1, 1]
    assert outcome(again.run_directory) == outcome(second.run_directory)
    assert len((second.run_directory / "log.txt").read_text().splitlines()) == second.training["max_epochs"]


def test_a_kept_process_that_is_killed_fails_its_run_alone(bare, write_job, text_directory):
    job = read_job(write_job(text_directory, model="word_average"), max_epochs=9000, patience=9000)

    def kill(event):
        if event["event"] == "epoch":
            (process,) = launcher.RUNNING
            process.kill()

    with launcher.kept_processes():
        with pytest.raises(launcher.TrainingFailed, match="SIGKILL"):
            launcher.run_training(job, kill)
        assert not launcher.KEPT.idle and not launcher.RUNNING


def test_several_processes_are_started_stopped_and_resumed(bare, write_job, text_directory):
    many = {"max_epochs": 9000, "patience": 9000, "ema_decay": 0.5}
    job = replace(read_job(write_job(text_directory, model="word_average"), **many), processes=2)
    events = []

    def stop_after_two_epochs(event):
        events.append(event)
        if event.get("epoch") == 2 and event["event"] == "epoch":
            launcher.stop_training()

    try:
        with pytest.raises(launcher.TrainingStopped):
            launcher.run_training(job, stop_after_two_epochs)
    finally:
        launcher.allow_training()
    reached = max(event["epoch"] for event in events if event["event"] == "epoch")
    assert reached >= 2 and not (job.run_directory / "result.json").exists()
    job = replace(job, training={**job.training, "max_epochs": reached + 3})
    launcher.run_training(job, events.append)
    resumed = [event["epoch"] for event in events if event["event"] == "started"]
    assert len(resumed) == 2 and resumed[1] >= 2 and events[-1]["result"]["epochs"] == reached + 3
    assert json.loads((job.run_directory / "environment.json").read_text())["processes"] == 2


def test_several_processes_without_their_data_are_an_input_error(bare, write_job, text_directory):
    job = replace(read_job(write_job(text_directory, model="word_average")), prepared=Path("nowhere"), processes=2)
    with pytest.raises(InputError, match="nowhere"):
        launcher.run_training(job, lambda event: None)


def test_several_processes_that_are_refused_are_an_input_error_and_not_tried_again(bare, write_job, text_directory):
    job = replace(read_job(write_job(text_directory, model="word_average"), batch_size=1), processes=2)
    events = []
    with pytest.raises(InputError, match="batch_size is 1"):
        launcher.run_training(job, events.append)
    assert [event["event"] for event in events].count("failed") == 1
    assert (job.run_directory / "log.txt").read_text().count("error: batch_size is 1") == 1


LAUNCH = """
import json, sys
from pathlib import Path
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.training.launcher import run_training
job = Job.from_json(json.loads(Path(sys.argv[1]).read_text()))
with file_lock(run_lock(job.run_directory)) as lock:
    run_training(job, lambda event: print(event["event"], flush=True), lock)
"""


def test_the_training_process_keeps_the_lock_when_its_launcher_is_killed(bare, write_job, text_directory):
    path = write_job(text_directory, model="word_average")
    many = {"max_epochs": 9000, "patience": 9000}
    path.write_text(json.dumps(read_job(path, **many).to_json()))
    lock = run_lock(json.loads(path.read_text())["run_directory"])
    process = subprocess.Popen([sys.executable, "-c", LAUNCH, str(path)], stdout=subprocess.PIPE, text=True)
    with process:
        while process.stdout.readline() != "epoch\n":
            assert process.poll() is None
        assert is_held(lock) and holder(lock) == f"process {process.pid}"
        process.kill()
    # It ends at its next event, and with it the lock.
    deadline = time.monotonic() + 30
    while is_held(lock):
        assert time.monotonic() < deadline, "the training process outlived its launcher"
        time.sleep(0.05)
