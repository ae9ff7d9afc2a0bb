"""What prune finds, and what it leaves alone."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands.app import main
from commands.prune import find, remove
from planning.resolve import make_plan
from preprocessing.prepare import prepare
from storage.errors import InputError
from storage.files import content_key, write_json
from storage.locks import file_lock, is_held, run_lock

ROOT = Path(__file__).resolve().parent.parent.parent
HOUR = 3600


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The tiny experiment alone, with its digits prepared and nothing trained."""
    monkeypatch.chdir(tmp_path)
    for name in ("REREAD_RUNS", "REREAD_PREPARED", "REREAD_REPORTS"):
        monkeypatch.delenv(name, raising=False)
    for name in ("params.yaml", "data.manifest.json", "experiments/tiny.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "data" / "digits", tmp_path / "data" / "digits")
    return tmp_path


@pytest.fixture
def prepared(folder):
    (about,) = digits().preparations().values()
    return prepare("digits", about["settings"])


def digits():
    return make_plan("tiny", ["densenet-relu"])


def make_job(seed=0, **parts):
    """The job of today's plan; ``parts`` of its key are changed."""
    (job,) = make_plan("tiny", ["densenet-relu"], [seed]).jobs()
    key_parts = {**job["key_parts"], **parts}
    return {**job, "key_parts": key_parts, "run_key": content_key(key_parts)}


def write_run(seed, finished=True, changed=(), **entries):
    """A run on disk. changed: what differs from today in the parts of its key; entries: in its job."""
    job = {**make_job(seed, **dict(changed)), **entries}
    key = content_key(job)[:16] if entries else job["run_key"]
    directory = Path("runs") / key
    write_json(directory / "job.json", {**job, "run_key": key, "run_directory": str(directory)})
    (directory / "checkpoints" / "000003").mkdir(parents=True)
    (directory / "checkpoints" / "000003" / "training.safetensors").write_bytes(b"l" * 1000)
    (directory / "best.safetensors").write_bytes(b"b" * 100)
    if finished:
        write_json(directory / "result.json", {"run_key": key})
    return directory


def found(kind):
    return {item.path: item.why for item in find() if item.kind == kind}


def make_old(path):
    for one in [path, *path.rglob("*")]:
        os.utime(one, (time.time() - 2 * HOUR,) * 2)


def test_of_a_finished_run_the_last_checkpoint_goes_and_the_best_stays(prepared):
    finished = write_run(0)
    unfinished = write_run(1, finished=False)
    beyond_the_list = write_run(7)
    assert set(found("checkpoint")) == {finished / "checkpoints", beyond_the_list / "checkpoints"}
    assert not found("run") and not found("prepared")
    freed, in_use = remove(find())
    assert (freed, in_use) == (2000, [])
    assert sorted(path.name for path in finished.glob("*.safetensors")) == ["best.safetensors"]
    assert (unfinished / "checkpoints" / "000003").exists()
    assert find() == []


def test_a_run_that_no_experiment_reaches_goes_and_the_reason_is_printed(prepared):
    kept = write_run(0)
    elsewhere = write_run(0, changed={"machine": {"torch": "2.11.0", "cuda": "13.0", "device": "a GPU"}})
    renamed = write_run(1, variant="renamed")
    other = {"changed": {"network": {"depth": 16}}}
    stale = {
        write_run(0, changed={"training": {"batch_size": 7}}): "parameters changed",
        write_run(0, changed={"data": "0" * 16}): "data changed",
        write_run(0, changed={"source": "0" * 64}): "source changed",
        write_run(1, finished=False, changed={"model": "other"}): "parameters changed",
        write_run(2, **other, variant="gone"): "no experiment has a variant 'gone'",
        write_run(2, **other, experiment="of-mine"): "experiment 'of-mine' is gone, and no other has this variant as "
        "it was",
    }
    assert found("run") == stale
    remove(find())
    # A run whose variant was renamed is reused by its key.
    assert {path for path in Path("runs").iterdir() if path.name != ".locks"} == {kept, elsewhere, renamed}


def test_a_run_whose_lock_is_held_is_left_alone(prepared):
    stale = write_run(0, changed={"source": "0" * 64}, variant="gone")
    finished = write_run(0)
    with file_lock(run_lock(stale)):
        assert set(found("run")) == set()
    items = find()
    # Somebody may begin between the list and the answer.
    with file_lock(run_lock(stale)):
        freed, in_use = remove(items)
    assert [item.path for item in in_use] == [stale] and stale.is_dir()
    assert freed == 1000 and not (finished / "checkpoints").exists()


def test_a_run_that_begins_to_train_between_list_and_removal_is_left_alone(prepared):
    """By its job alone, as on a machine without the flows."""
    many = {**make_job()["training"], "max_epochs": 9000, "patience": 9000}
    stale = write_run(0, finished=False, changed={"training": {"max_epochs": 9000}}, training=many)
    shutil.rmtree(stale / "checkpoints")
    items = find()
    assert [item.path for item in items] == [stale]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "training", str(stale / "job.json")]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        while not is_held(run_lock(stale)):
            assert process.poll() is None
            time.sleep(0.05)
        freed, in_use = remove(items)
        assert (freed, [item.path for item in in_use]) == (0, [stale]) and stale.is_dir()
    finally:
        process.kill()
        process.wait()
    assert remove(items)[1] == [] and not stale.exists()


def test_runs_of_arrays_that_can_be_prepared_again_are_kept(prepared):
    write_run(0)
    shutil.rmtree(prepared)
    assert not found("run")


def test_arrays_go_when_neither_an_experiment_nor_a_kept_run_refers_to_them(prepared):
    unused = Path("prepared") / "0123456789abcdef"
    shutil.copytree(prepared, unused)
    of_a_held_run = Path("prepared") / "fedcba9876543210"
    shutil.copytree(prepared, of_a_held_run)
    run = write_run(0, changed={"source": "0" * 64}, prepared=str(of_a_held_run))
    with file_lock(run_lock(run)):
        assert set(found("prepared")) == {unused}
    assert set(found("prepared")) == {unused, of_a_held_run}


def test_what_a_dead_process_left_goes_after_an_hour(prepared):
    run = write_run(0)
    old = [Path("prepared/.0123.abc"), Path("runs/.reproduced"), Path("data/.digits.xyz")]
    for path in [*old, Path("prepared/.4567.def")]:
        path.mkdir()
        (path / "part").write_bytes(b"p" * 10)
    partial = run / ".best.safetensors.partial"
    partial.write_bytes(b"p")
    for path in [*old, partial]:
        make_old(path)
    assert set(found("leftover")) == {*old, partial}
    remove(find())
    assert Path("prepared/.4567.def").is_dir() and Path("prepared/.locks").is_dir()
    assert not partial.exists() and (run / "best.safetensors").exists()


def test_a_broken_experiment_stops_it(prepared):
    write_run(0, changed={"source": "0" * 64}, variant="gone")
    Path("experiments/tiny.yaml").write_text("variants: [")
    with pytest.raises(InputError, match="tiny.yaml"):
        find()


def test_it_asks_first(prepared, reread, folder, monkeypatch):
    monkeypatch.chdir(folder)
    stale = write_run(0, changed={"source": "0" * 64}, variant="gone")
    size = sum(file.stat().st_size for file in stale.rglob("*") if file.is_file())
    (listed,) = json.loads(reread("prune", "--dry-run", "--json"))
    assert (listed["path"], listed["kind"], listed["bytes"]) == (str(stale), "run", size)
    assert str(stale) in reread("prune", "--dry-run")

    def answer(text):
        monkeypatch.setattr("sys.stdin.isatty", lambda: text is not None)
        monkeypatch.setattr("builtins.input", lambda *_: text)

    answer(None)
    with pytest.raises(SystemExit):
        main(["prune"])
    for text in ("", "n"):
        answer(text)
        assert "nothing was removed" in reread("prune")
    assert stale.is_dir()
    answer("y")
    assert f"freed {size / 1000:.1f} kB" in reread("prune")
    assert not stale.exists()
    assert "nothing to remove" in reread("prune", "--yes")
