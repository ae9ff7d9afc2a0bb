"""A run where it cannot write, where another trains it, and in a poor environment: it works, or says why in a line."""

import json
import resource
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from prefect.states import Failed

from reread.storage.errors import InputError, TransientError
from reread.storage.source import ROOT
from reread.training import loop
from reread.training.launcher import TrainingFailed
from tasks.step import _may_pass
from tests.reread.training.outcome import outcome

# No bytecode: under a limit on file sizes Python leaves modules that are cut.
POOR = {
    "PYTHONPATH": str(ROOT),
    "PYTHONDONTWRITEBYTECODE": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "LC_ALL": "C",
    "PATH": "",
}
FOLDER = "Läufe – mit Leerzeichen"


def start(job, *options, program=("-m", "reread.training"), **keywords):
    """Train with no HOME, no git, no language and warnings as errors."""
    command = [sys.executable, "-W", "error", *program, str(job), *options]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen(command, cwd=job.parent, env=POOR, **streams, **keywords)


def finish(process):
    output, errors = process.communicate(timeout=120)
    return process.returncode, output, errors


def write_in(folder, job):
    """A copy of a job in a folder, which trains there."""
    folder.mkdir()
    copied = folder / f"{job.stem} ü.json"
    given = json.loads(job.read_text()) | {"run_directory": str(folder / "runs" / "key")}
    copied.write_text(json.dumps(given))
    return copied


def limit(size):
    """Let the process write no file beyond a size, as on a disk that is full."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def test_a_full_disk_is_one_line_and_training_resumes_when_there_is_room(
    write_job, text_directory, train_here, tmp_path
):
    settings = {"max_epochs": 3}
    whole = write_job(text_directory, "whole", model="word_average", run_key="key", training=settings)
    train_here(whole)
    job = write_in(tmp_path / FOLDER, whole)
    folder = job.parent / "runs" / "key"
    code, _, errors = finish(start(job, preexec_fn=limit(3000)))
    assert code == 2 and errors.count("\n") == 1 and "make room" in errors and FOLDER in errors
    assert not (folder / "result.json").exists() and not list(folder.glob("checkpoints/*"))
    code, _, errors = finish(start(job))
    assert (code, errors) == (0, "")
    assert outcome(folder) == outcome(tmp_path / "runs" / "whole")
    environment = json.loads((folder / "environment.json").read_text())
    assert environment.get("git_commit") is None


def test_a_job_that_trains_outside_of_its_folder_and_of_the_project_is_refused(
    train_by_command, write_job, text_directory, tmp_path, monkeypatch
):
    (tmp_path / "project/runs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project/runs/linked").symlink_to(tmp_path / "elsewhere")
    monkeypatch.chdir(tmp_path / "project")
    given = json.loads(write_job(text_directory).read_text())
    for outside in ("../elsewhere/key", str(tmp_path / "elsewhere"), "runs/linked/key"):
        job = tmp_path / "project/runs/job.json"
        job.write_text(json.dumps({**given, "run_directory": outside}))
        code, _, errors = train_by_command(job)
        assert code == 2 and errors.count("\n") == 1 and outside in errors
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_folder_that_may_not_be_written_is_one_line(train_by_command, write_job, text_directory, monkeypatch):
    # Of the kernel's: not even root makes a folder there.
    job = write_job(text_directory, run_directory="/sys/kernel/runs/key")
    monkeypatch.chdir("/sys/kernel")
    code, _, errors = train_by_command(job)
    assert code == 2 and errors.count("\n") == 1 and "/sys/kernel/runs/key" in errors


def test_of_two_that_train_a_run_the_second_names_the_first_and_starts_at_once_when_that_is_killed(
    write_job, text_directory
):
    job = write_job(text_directory, "key", training={"max_epochs": 10_000, "patience": 10_000})
    first = start(job, "--events")
    assert '"started"' in first.stdout.readline()
    refused, second = start(job, "--no-wait"), start(job, "--events")
    code, _, errors = finish(refused)
    assert code == 2 and errors.count("\n") == 1 and f"process {first.pid}" in errors
    assert f"process {first.pid}" in second.stderr.readline()
    while json.loads(first.stdout.readline())["event"] != "epoch":
        pass
    assert second.poll() is None
    first.send_signal(signal.SIGKILL)
    killed = time.monotonic()
    started = json.loads(second.stdout.readline())
    assert started["event"] == "started" and started["epoch"] >= 1 and time.monotonic() - killed < 20
    # What Ctrl-C sends.
    second.send_signal(signal.SIGINT)
    code, _, errors = finish(second)
    assert code == 130 and "Traceback" not in errors
    finish(first)


def test_a_loss_that_is_not_finite_leaves_the_checkpoint_as_it_was(write_job, text_directory, train_here, monkeypatch):
    job = write_job(text_directory, "key", model="word_average", training={"max_epochs": 3})
    folder = job.parent / "runs" / "key"
    validate = loop.validate

    def diverge(*arguments):
        return replace(validate(*arguments), loss=float("nan") if list(folder.glob("checkpoints/*")) else 1.0)

    monkeypatch.setattr(loop, "validate", diverge)
    for _ in range(2):
        with pytest.raises(InputError, match="validation loss after epoch 2 .* lower learning_rate"):
            train_here(job)
        assert [path.name for path in folder.glob("checkpoints/*")] == ["000001"]
        assert not (folder / "result.json").exists()
    monkeypatch.undo()
    train_here(job)
    assert "resumed after epoch 1" in (folder / "log.txt").read_text()


# Limits the memory of its process to what it has and a little more, once all is imported.
LIMITED = """
import resource, sys
from reread.training.__main__ import main
import reread.training.run
from pathlib import Path
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 200_000_000,) * 2)
main([sys.argv[1]])
"""


def test_memory_that_runs_out_is_one_line_and_the_checkpoint_stays(write_job, text_directory, train_here):
    settings = {"model": "word_average", "training": {"max_epochs": 2}}
    folder = train_here(write_job(text_directory, "key", **settings))
    before = {path: path.read_bytes() for path in folder.rglob("checkpoints/*/*")}
    (folder / "result.json").unlink()
    # A network of two gigabytes.
    large = {"embedding_dim": 4096, "hidden_size": 4096}
    job = write_job(text_directory, "key", **{**settings, "model": "han"}, network=large)
    code, _, errors = finish(start(job, program=("-c", LIMITED)))
    assert code == 2 and errors.count("\n") == 1, errors
    assert "too little memory" in errors and "lower batch_size (8)" in errors
    assert {path: path.read_bytes() for path in folder.rglob("checkpoints/*/*")} == before != {}


def test_a_gpu_out_of_memory_and_a_refused_job_are_not_tried_again(write_job, text_directory, train_here, monkeypatch):
    job = write_job(text_directory, "key", model="word_average", training={"max_epochs": 3})
    folder = job.parent / "runs" / "key"
    calls = []

    def run_out(*arguments):
        calls.append(arguments)
        if list(folder.glob("checkpoints/*")):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
        return validate(*arguments)

    validate = loop.validate
    monkeypatch.setattr(loop, "validate", run_out)
    with pytest.raises(InputError, match="too little memory .* lower batch_size") as error:
        train_here(job)
    assert len(calls) == 2 and [path.name for path in folder.glob("checkpoints/*")] == ["000001"]
    # Prefect retries what may pass, and this does not.
    states = [Failed(data=failure) for failure in (error.value, TrainingFailed("killed"), TransientError("busy"))]
    assert [_may_pass(None, None, state) for state in states] == [False, False, True]
