"""Several jobs in one command: one after the other, and one that fails does not keep the others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.layers import parameter_count
from reread.storage.locks import file_lock, run_lock
from reread.storage.numeric import numeric_digest, numeric_files
from reread.storage.source import ROOT
from reread.training.__main__ import CROWDED, main, train_at_once
from reread.training.machine import machine
from tests.reread.training.outcome import outcome

FLAT = {"name": "constant", "warmup_epochs": 0}


@pytest.fixture(autouse=True)
def settings_of_the_process():
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def train(monkeypatch, capsys):
    """Call the command in this process: its exit code, what it printed, and what it told on stderr."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def call(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        return ended.value.code, *capsys.readouterr()

    return call


def test_one_after_the_other_with_the_bytes_of_each_alone(train, write_job, image_directory):
    settings = {"max_epochs": 2}
    first, second, alone = (
        write_job(image_directory, key, "densenet", seed=seed, run_key=f"seed {seed}", training=settings)
        for key, seed in (("first", 1), ("second", 2), ("alone", 2))
    )
    code, output, errors = train(first, second)
    assert (code, errors) == (0, "") and output.count("stopped by max_epochs") == 2
    assert train(alone)[0] == 0
    runs = first.parent / "runs"
    assert outcome(runs / "second") == outcome(runs / "alone")
    assert (runs / "first/best.safetensors").read_bytes() != (runs / "alone/best.safetensors").read_bytes()
    # Again: all is finished.
    before = (runs / "first/history.csv").stat().st_mtime_ns
    assert train(first, second, "--events")[0] == 0
    assert (runs / "first/history.csv").stat().st_mtime_ns == before


def test_a_job_that_fails_does_not_keep_the_others(train, write_job, image_directory, tmp_path, monkeypatch):
    small = {"max_epochs": 2}
    wrong = write_job(image_directory, "wrong", "densenet", training={"max_epochs": -1})
    right = write_job(image_directory, "right", "densenet", training=small)
    code, _, errors = train(wrong, tmp_path / "none.json", right)
    assert code == 2 and errors.count("\n") == 2 and errors.count("error: ") == 2
    assert (tmp_path / "runs/right/result.json").is_file() and not (tmp_path / "runs/wrong").exists()
    # A failure that nobody foresaw is told whole, and outweighs what was only wrong.
    broken, last = (write_job(image_directory, key, "densenet", training=small) for key in ("broken", "last"))
    breaks = iter([True])

    def counted(network):
        if next(breaks, False):
            raise RuntimeError("out of order")
        return parameter_count(network)

    monkeypatch.setattr("reread.training.run.parameter_count", counted)
    code, _, errors = train(wrong, broken, last)
    assert code == 1 and "RuntimeError: out of order" in errors and "Traceback" in errors
    assert (tmp_path / "runs/last/result.json").is_file() and not (tmp_path / "runs/broken/result.json").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"training": {"max_epochs": "9"}}, "max_epochs"),
        ({"training": {"max_epochs": 0}}, "max_epochs"),
        ({"training": {"batch_size": 2.5}}, "batch_size"),
        ({"training": {"learning_rate": None}}, "learning_rate"),
        ({"training": {"learning_rate": 10**400}}, "learning_rate"),
        ({"training": {"deterministic": 1}}, "deterministic"),
        ({"training": {"amp": "bf8"}}, "'bf16'"),
        ({"training": {"augmentation": "flip"}}, "augmentation"),
        ({"training": {"augmentation": [{"pixels": 2}]}}, "augmentation"),
        ({"training": {"augmentation": [{"name": "shift", "pixels": "2"}]}}, "pixels"),
        ({"training": {"optimizer": {}}}, "optimizer"),
        ({"training": {"optimizer": {"name": "adamm"}}}, "'adamw'"),
        ({"training": {"objective": {"name": ["classification"]}}}, "objective"),
        ({"training": {"schedule": {"name": "cosine", "warmup_epochs": []}}}, "warmup_epochs"),
        ({"network": {"depth": "10"}}, "depth"),
        ({"network": {"depth": 10, "growth_rate": -4}}, "growth_rate"),
        ({"network": {"activation": {"name": "swich"}}}, "'swish'"),
        ({"network": {"activation": 5}}, "activation"),
        ({"network": {"dept": 10}}, "'dept'"),
        ({"model": "densenett"}, "'densenet'"),
        ({"runs_per_gpu": "two"}, "runs_per_gpu"),
        ({"seed": True}, "seed"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line_before_anything_is_written(
    train, write_job, image_directory, tmp_path, changes, named
):
    path = write_job(image_directory, "wrong", "densenet", training={"max_epochs": 3})
    job = json.loads(path.read_text())
    path.write_text(json.dumps(job | changes | {"training": job["training"] | changes.get("training", {})}))
    code, output, errors = train(path)
    assert (code, output) == (2, "") and errors.startswith("error: ") and errors.count("\n") == 1
    assert str(path) in errors and named in errors
    assert not (tmp_path / "runs/wrong/job.json").exists()


def test_a_job_of_other_sources_is_refused_before_anything_is_written(train, write_job, image_directory):
    path = write_job(image_directory, "other", "densenet", training={"max_epochs": 2})
    job = json.loads(path.read_text())
    modules = ["models.densenet"]
    files = numeric_files(modules)
    right = {"modules": modules, "digest": numeric_digest(modules), "files": files}
    others = files | {"models/densenet.py": "0" * 64, "models/gone.py": "1" * 64}
    path.write_text(json.dumps(job | {"source": {**right, "digest": "0" * 64, "files": others}}))
    code, output, errors = train(path)
    assert code == 2 and not output
    assert f"error: {path} " in errors and "(models/densenet.py and 1 more)" in errors
    assert errors.count("\n") == 1 and not (path.parent / "runs" / "other" / "environment.json").exists()
    # A job from before sources were named by what they compute.
    path.write_text(json.dumps(job | {"source": {"models/densenet.py": "0" * 64}}))
    assert train(path)[0] == 2
    path.write_text(json.dumps(job | {"source": right}))
    assert train(path)[0] == 0


def test_a_job_of_another_machine_is_refused(train, write_job, image_directory):
    small = {"max_epochs": 2}
    here = write_job(image_directory, "here", "densenet", training=small, machine=machine())
    other = write_job(image_directory, "other", "densenet", training=small, machine={**machine(), "device": "H200"})
    code, _, errors = train(here, other)
    assert code == 0 and errors.count("\n") == 1
    assert f"warning: {other} was made for another machine (device H200 and not {machine()['device']})" in errors


def test_the_machine_is_printed_as_json():
    done = subprocess.run(
        [sys.executable, "-m", "reread.training.machine"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == machine() and set(machine()) >= {"torch", "cuda", "device"}


@pytest.mark.parametrize(("jobs", "count"), [(2, 6), (3, 3), (7, 3), (1, 4), (5, 4)])
def test_each_process_begins_at_another_place_of_the_list(monkeypatch, jobs, count):
    begun = []

    class Process:
        def __init__(self, command):
            begun.append([Path(word) for word in command if word.endswith(".json")])

        def wait(self):
            return 0

        def terminate(self):
            pass

    monkeypatch.setattr(subprocess, "Popen", Process)
    listed = [Path(f"{number}.json") for number in range(jobs)]
    assert train_at_once(listed, count, None) == 0
    assert len({paths[0] for paths in begun}) == len(begun) == min(jobs, count)
    assert all(sorted(paths) == listed for paths in begun)


def test_a_run_that_lacks_memory_beside_others_says_so_by_its_exit_code(train, write_job, image_directory, monkeypatch):
    """Alone, and for bad input, the code is 2: nothing would change."""

    def run_out(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    monkeypatch.setattr("reread.training.loop.validate", run_out)
    job = write_job(image_directory, "large", "densenet")
    missing = job.with_name("missing.json")
    assert train(missing, job, "--skip-locked")[0] == CROWDED
    assert train(job)[0] == train(missing, "--skip-locked")[0] == 2


@pytest.mark.parametrize(
    ("fit", "rounds", "code"),
    [
        ({8: 5, 3: 7}, [8, 3, 1], 0),  # 3 and 1 are left: never more processes than runs
        ({8: 0, 4: 0, 2: 0, 1: 7}, [8, 4, 2, 1], 2),  # one never fits
        ({8: 8}, [8], 0),
    ],
)
def test_runs_that_lacked_memory_are_trained_again_by_fewer_processes(tmp_path, monkeypatch, capsys, fit, rounds, code):
    """fit: how many of eight runs are finished after a round of so many processes."""
    jobs = [tmp_path / str(number) / "job.json" for number in range(8)]
    begun: list[int] = []

    def train_by(listed, count, runs_per_gpu):
        begun.append(count)
        return [0] * (count - 1) + [CROWDED if finished() < 8 else 0]

    def finished():
        return fit.get(begun[-1], 8)

    monkeypatch.setattr("reread.training.__main__.train_by", train_by)
    monkeypatch.setattr("reread.training.__main__.is_finished", lambda path: int(path.parent.name) < finished())
    assert train_at_once(jobs, 8, None) == code
    assert begun == rounds
    assert capsys.readouterr().err.count("too little memory beside others") == len(rounds) - 1


def test_a_list_is_trained_by_several_processes_each_run_once(write_job, image_directory, tmp_path):
    paths = [
        write_job(image_directory, f"run-{seed}", "densenet", seed=seed, training={"max_epochs": 1, "schedule": FLAT})
        for seed in range(3)
    ]
    held = write_job(image_directory, "held", "densenet", training={"max_epochs": 1, "schedule": FLAT})
    listed = tmp_path / "jobs.txt"
    listed.write_text("".join(f"{path}\n" for path in [*paths, held]))
    command = [sys.executable, "-m", "reread.training", f"@{listed}", "--at-once", "2"]
    with file_lock(run_lock(tmp_path / "runs/held")):
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for path in paths:
        directory = tmp_path / "runs" / path.stem
        assert len((directory / "log.txt").read_text().splitlines()) == 1 and (directory / "result.json").is_file()
    assert not (tmp_path / "runs/held/result.json").exists()
