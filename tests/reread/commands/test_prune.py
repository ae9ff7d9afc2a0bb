"""The files that prune finds, and those that it leaves alone."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from reread.commands.app import main
from reread.commands.prune import find, remove
from reread.planning.resolve import make_plan
from reread.preprocessing.prepare import prepare
from reread.storage.files import content_key, write_json
from reread.storage.locks import file_lock, is_held, run_lock

ROOT = Path(__file__).resolve().parents[3]
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
    job = make_plan("tiny", ["densenet-relu"], [seed]).jobs()[0].to_json()
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


def prunable(kind):
    return {item.path: item.why for item in find() if item.kind == kind}


def make_old(path):
    for place in [path, *path.rglob("*")]:
        os.utime(place, (time.time() - 2 * HOUR,) * 2)


def test_of_a_finished_run_the_last_checkpoint_goes_and_the_best_stays(prepared):
    finished = write_run(0)
    unfinished = write_run(1, finished=False)
    beyond_the_list = write_run(7)
    assert set(prunable("checkpoint")) == {finished / "checkpoints", beyond_the_list / "checkpoints"}
    assert not prunable("run") and not prunable("prepared")
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
    assert prunable("run") == stale
    remove(find())
    # A run whose variant was renamed is reused by its key.
    assert {path for path in Path("runs").iterdir() if path.name != ".locks"} == {kept, elsewhere, renamed}


def test_a_run_whose_lock_is_held_is_left_alone(prepared):
    stale = write_run(0, changed={"source": "0" * 64}, variant="gone")
    finished = write_run(0)
    with file_lock(run_lock(stale)):
        assert set(prunable("run")) == set()
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
    command = [sys.executable, "-m", "reread.training", str(stale / "job.json")]
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
    assert not prunable("run")


def test_arrays_go_when_neither_an_experiment_nor_a_kept_run_refers_to_them(prepared):
    unused = Path("prepared") / "0123456789abcdef"
    shutil.copytree(prepared, unused)
    of_a_held_run = Path("prepared") / "fedcba9876543210"
    shutil.copytree(prepared, of_a_held_run)
    run = write_run(0, changed={"source": "0" * 64}, prepared=str(of_a_held_run))
    with file_lock(run_lock(run)):
        assert set(prunable("prepared")) == {unused}
    assert set(prunable("prepared")) == {unused, of_a_held_run}


# A process that writes each of these folders, under the locks that the project's own processes hold.
WRITES = """
    import contextlib, sys, time
    from pathlib import Path
    from reread.commands.data_add import lock_of
    from reread.commands.reproduce import FOLDER
    from reread.storage.files import published_directory
    from reread.storage.locks import file_lock, run_lock
    with contextlib.ExitStack() as held:
        for key in sys.argv[1:]:
            held.enter_context(file_lock(run_lock(Path("runs") / key)))
        held.enter_context(file_lock(run_lock(Path("runs") / FOLDER / "0123")))
        held.enter_context(file_lock(run_lock(Path("prepared/4567"))))
        held.enter_context(file_lock(lock_of("photos")))
        for folder in ("reports/tiny", "data/digits"):
            held.enter_context(published_directory(Path(folder)))
        print("locked", flush=True)
        time.sleep(600)
"""


def test_what_a_process_writes_is_left_alone_however_old_it_looks(prepared, folder):
    """A preparation takes hours, and a clock may be set back or forward."""
    run, other = write_run(0), write_run(1, finished=False)
    written = [
        Path("prepared/.4567.abcdef"),
        Path(f"runs/.{run.name}.abcdef"),
        Path("runs/.reproduced/0123"),
        Path("data/.photos.abcdef"),
        run / ".evaluation.abcdef",
        other / "checkpoints" / ".000004.abcdef",
    ]
    for path in written:
        path.mkdir(parents=True)
        (path / "part").write_bytes(b"p")
    process = start(WRITES, run.name, other.name)
    try:
        assert process.stdout.readline() == "locked\n"
        written += [*Path("reports").glob(".tiny.*"), *Path("data").glob(".digits.*")]
        assert len(written) == 8
        for root in ("runs", "prepared", "reports", "data"):
            make_old(Path(root))
        assert set(prunable("leftover")) == set()
    finally:
        process.kill()
        process.communicate()
    assert set(prunable("leftover")) == set(written)
    items = find()
    process = start(WRITES, run.name, other.name)
    try:
        assert process.stdout.readline() == "locked\n"
        _, in_use = remove(item for item in items if item.kind == "leftover" and item.path.parent.name != "reports")
        assert {item.path for item in in_use} == {*written[:6]}
        assert all(path.exists() for path in written[:6])
    finally:
        process.kill()
        process.communicate()


def start(code, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE)


def test_what_a_dead_process_left_goes_after_an_hour(prepared):
    run = write_run(0)
    old = [Path("prepared/.0123.abc"), Path("runs/.reproduced/89ab"), Path("data/.digits.xyz"), Path("results/.tiny.x")]
    for path in [*old, Path("prepared/.4567.def")]:
        path.mkdir(parents=True)
        (path / "part").write_bytes(b"p" * 10)
    partial = run / ".best.safetensors.partial"
    partial.write_bytes(b"p")
    for path in [*old, partial]:
        make_old(path)
    assert set(prunable("leftover")) == {*old, partial}
    # git offers to commit what is in results/.
    assert subprocess.run(["git", "check-ignore", "--quiet", "results/.tiny.x/runs.json"], cwd=ROOT).returncode == 0
    remove(find())
    assert Path("prepared/.4567.def").is_dir() and Path("prepared/.locks").is_dir()
    assert not partial.exists() and (run / "best.safetensors").exists()


def test_a_broken_experiment_keeps_every_run_and_all_arrays(prepared, folder, reread, monkeypatch):
    """It might reuse any of them; checkpoints and leftovers do not depend on it."""
    monkeypatch.chdir(folder)
    stale = write_run(0, changed={"source": "0" * 64}, variant="gone")
    finished = write_run(0)
    shutil.copytree(prepared, Path("prepared") / "0123456789abcdef")
    assert set(prunable("run")) == {stale} and prunable("prepared")
    broken = Path("experiments/broken.yaml")
    shutil.copy("experiments/tiny.yaml", broken)
    broken.write_text(broken.read_text().replace("model: densenet", "model: densenett"))
    assert not prunable("run") and not prunable("prepared")
    assert set(prunable("checkpoint")) == {stale / "checkpoints", finished / "checkpoints"}
    lines = []
    find(lines.append)
    (line,) = lines
    assert "broken" in line and "densenett" in line
    broken.write_text("variants: [")
    reread("prune", "--yes")
    assert stale.is_dir() and not (finished / "checkpoints").exists()


def test_a_run_of_a_job_that_was_written_by_hand_is_kept(prepared):
    """`python -m reread.training` takes a job without the parts of a key, or with some of them."""
    for seed, left_out in ((0, ("key_parts",)), (1, ("key_parts", "prepared", "variant", "experiment"))):
        run = write_run(seed)
        job = json.loads((run / "job.json").read_text())
        write_json(run / "job.json", {name: value for name, value in job.items() if name not in left_out})
    run = write_run(2)
    job = json.loads((run / "job.json").read_text())
    write_json(run / "job.json", {**job, "key_parts": {"source": 5}})
    assert not prunable("run") and not prunable("prepared")
    assert len(prunable("checkpoint")) == 3


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


# `reread run`, which calls prune when all is trained and nothing is evaluated.
RUN_AND_PRUNE = """
import subprocess, sys
from pathlib import Path
import tasks.evaluate
from reread.commands.app import main

evaluate = tasks.evaluate.evaluate.fn

def prune_first(plan, prepared, so_far):
    edited = Path("experiments/tiny.yaml")
    edited.write_text(edited.read_text().replace("rows_per_class: 20", "rows_per_class: 10"))
    for given in (["--dry-run"], ["--yes"]):
        subprocess.run([sys.executable, "-m", "reread", "prune", *given], check=True)
    return evaluate(plan, prepared, so_far)

tasks.evaluate.evaluate.fn = prune_first
main(["run", *sys.argv[1:]])
"""


def test_what_a_flow_has_trained_and_prepared_stays_until_it_has_ended(project, prefect_api):
    """Its runs are no experiment's, its arrays are those of an experiment that was edited since, no lock is held."""
    project = project.using(prefect_api)
    overrides = ["--set", "training.max_epochs=2", "--variant", "densenet-relu", "--seed", "0"]
    said = project.run("python", "-c", RUN_AND_PRUNE, "--experiment", "tiny", *overrides).stdout
    assert said.count("nothing to remove") == 2 and "report.html" in said
    (run,) = (path.parent for path in project.directory.glob("runs/*/result.json"))
    (arrays,) = (path.parent for path in project.directory.glob("prepared/*/prepared.json"))
    said = project.run("python", "-m", "reread", "prune", "--yes").stdout
    assert "parameters changed" in said or "data changed" in said
    assert not run.exists() and not arrays.exists()


def test_a_run_that_a_flow_reserves_between_list_and_removal_is_left_alone(prepared):
    stale = write_run(0, changed={"source": "0" * 64}, variant="gone")
    items = find()
    process = start(
        """
        import sys, time
        from reread.storage.locks import reserve
        reserve(sys.argv[1:])
        print("reserved", flush=True)
        time.sleep(600)
        """,
        str(stale),
    )
    try:
        assert process.stdout.readline() == "reserved\n"
        _, (left,) = remove(items)
        assert (left.path, left.user) == (stale, f"process {process.pid}") and stale.is_dir()
        assert find() == []
    finally:
        process.kill()
        process.communicate()
    assert remove(items)[1] == [] and not stale.exists()
