"""What prune finds, and what it leaves alone."""

import os
import shutil
import time
from pathlib import Path

import pytest

from commands import prune
from commands.pruning import find, remove
from planning.plan import make_plan
from preprocessing.prepare import prepare
from storage.errors import InputError
from storage.files import content_key, file_lock, write_json

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
    (about,) = make_plan("tiny", ["densenet-relu"]).preparations().values()
    return prepare(about["data"], about["settings"])


def write_run(arrays, seed, finished=True, parts=None, **changed):
    """A run on disk; ``parts`` of its key and what is ``changed`` in its job differ from today's."""
    (job,) = make_plan("tiny", ["densenet-relu"], [seed]).jobs()
    job = {**job, **changed, "key_parts": {**job["key_parts"], **(parts or {})}}
    key = content_key(job) if changed or parts else job["run_key"]
    directory = Path("runs") / key
    write_json(directory / "job.json", {**job, "run_key": key, "run_directory": str(directory)})
    (directory / "last.safetensors").write_bytes(b"l" * 1000)
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
    finished = write_run(prepared, 0)
    unfinished = write_run(prepared, 1, finished=False)
    beyond_the_list = write_run(prepared, 7)
    assert set(found("checkpoint")) == {finished / "last.safetensors", beyond_the_list / "last.safetensors"}
    assert not found("run") and not found("prepared")
    freed, in_use = remove(find())
    assert (freed, in_use) == (2000, [])
    assert sorted(path.name for path in finished.glob("*.safetensors")) == ["best.safetensors"]
    assert (unfinished / "last.safetensors").exists()
    assert find() == []


def test_a_run_that_no_experiment_reaches_goes_and_the_reason_is_told(prepared):
    kept = write_run(prepared, 0)
    elsewhere = write_run(prepared, 0, parts={"machine": {"torch": "2.11.0", "cuda": "13.0", "device": "a GPU"}})
    renamed = write_run(prepared, 0, variant="renamed")
    stale = {
        write_run(prepared, 0, parts={"training": {"batch_size": 7}}): "parameters changed",
        write_run(prepared, 0, parts={"data": "0" * 16}): "data changed",
        write_run(prepared, 0, parts={"source": "0" * 64}): "source changed",
        write_run(prepared, 0, parts={"source": "0" * 64}, variant="gone"): "no experiment has a variant 'gone'",
        write_run(prepared, 1, finished=False, parts={"model": "other"}): "parameters changed",
        write_run(prepared, 2, experiment="of-mine", parts={"data": "0" * 16}): "experiment 'of-mine' is gone, and no "
        "other has this variant as it was",
    }  # fmt: skip
    assert found("run") == stale
    remove(find())
    assert set(Path("runs").iterdir()) == {kept, elsewhere, renamed}


def test_a_run_in_training_is_left_alone_by_either_lock(prepared):
    stale = write_run(prepared, 0, parts={"source": "0" * 64})
    finished = write_run(prepared, 0)
    for lock in (Path(".locks") / f"run-{stale.name}.lock", stale / ".lock"):
        with file_lock(lock):
            assert set(found("run")) == set()
    items = find()
    # Somebody may begin between the list and the answer.
    with file_lock(Path(".locks") / f"run-{stale.name}.lock"):
        freed, in_use = remove(items)
    assert [item.path for item in in_use] == [stale] and stale.is_dir()
    assert freed == 1000 and not (finished / "last.safetensors").exists()


def test_runs_of_arrays_that_can_be_prepared_again_are_kept(prepared):
    write_run(prepared, 0)
    shutil.rmtree(prepared)
    assert not found("run")


def test_arrays_go_when_neither_an_experiment_nor_a_kept_run_refers_to_them(prepared):
    unused = Path("prepared") / "0123456789abcdef"
    shutil.copytree(prepared, unused)
    of_a_held_run = Path("prepared") / "fedcba9876543210"
    shutil.copytree(prepared, of_a_held_run)
    run = write_run(prepared, 0, prepared=str(of_a_held_run), parts={"source": "0" * 64})
    with file_lock(run / ".lock"):
        assert set(found("prepared")) == {unused}
    assert set(found("prepared")) == {unused, of_a_held_run}


def test_what_a_dead_process_left_goes_after_an_hour(prepared):
    run = write_run(prepared, 0)
    old = [Path("prepared/.0123.abc"), Path("runs/.reproduced"), Path("data/.digits.xyz")]
    for path in [*old, Path("prepared/.4567.def")]:
        path.mkdir()
        (path / "part").write_bytes(b"p" * 10)
    partial = run / ".last.safetensors.partial"
    partial.write_bytes(b"p")
    for path in [*old, partial]:
        make_old(path)
    assert set(found("leftover")) == {*old, partial}
    remove(find())
    assert Path("prepared/.4567.def").is_dir() and Path("prepared/.locks").is_dir()
    assert not partial.exists() and (run / "best.safetensors").exists()


def test_a_broken_experiment_stops_it(prepared):
    write_run(prepared, 0, parts={"source": "0" * 64})
    Path("experiments/tiny.yaml").write_text("variants: [")
    with pytest.raises(InputError, match="tiny.yaml"):
        find()


def run_main(monkeypatch, *arguments, answer=None):
    monkeypatch.setattr("sys.argv", ["prune", *arguments])
    monkeypatch.setattr("sys.stdin.isatty", lambda: answer is not None)
    monkeypatch.setattr("builtins.input", lambda *_: answer)
    with pytest.raises(SystemExit) as ended:
        prune.main()
    return ended.value.code


def test_it_asks_first(prepared, monkeypatch, capsys):
    stale = write_run(prepared, 0, parts={"source": "0" * 64})
    size = sum(file.stat().st_size for file in stale.iterdir())
    assert run_main(monkeypatch, "--dry-run") == 0
    assert run_main(monkeypatch) == 2
    assert "--yes" in capsys.readouterr().err
    for answer in ("", "n"):
        assert run_main(monkeypatch, answer=answer) == 0
        assert "nothing was removed" in capsys.readouterr().out
    assert stale.is_dir()
    assert run_main(monkeypatch, answer="y") == 0
    assert f"freed {size / 1000:.1f} kB" in capsys.readouterr().out
    assert not stale.exists()
    assert run_main(monkeypatch, "--yes") == 0
    assert "nothing to remove" in capsys.readouterr().out
