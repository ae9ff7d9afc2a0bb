"""`reread data remove`: what is named and refused, the question, a kill on the way, and DVC afterwards."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reread.planning.trial import experiment_of, tuning_of, write_experiment
from reread.planning.tuning import tuning_name
from reread.preprocessing.manifest import Manifest, open_data_set
from reread.storage.files import write_json
from reread.storage.locks import file_lock
from reread.storage.source import ROOT
from tests.reread.commands.test_data_add import write_table

# `reread data remove mine --yes`, killed where the manifest is about to be written, or unable to write it.
BROKEN = """
import os
from reread.commands.app import main
from reread.preprocessing import raw

def broken(name, path):
    {fault}

raw.forget = broken
main(["data", "remove", "mine", "--yes"])
"""
FAULTS = {"os._exit(9)": 9, "raise OSError(28, 'No space left on device')": 2}


@pytest.fixture
def here(reread, tmp_path, monkeypatch):
    """The command in a folder with the project's settings and manifest, and own data named ``mine``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name in ("data.manifest.json", "params.yaml"):
        shutil.copy2(ROOT / name, tmp_path)
    reread("data", "add", write_table("mine.csv", 60))
    return reread


def kept() -> dict[str, bytes]:
    """The files of data/ and the manifest."""
    files = [*Path("data").rglob("*"), Path("data.manifest.json")]
    return {str(path): path.read_bytes() for path in files if path.is_file()}


def test_what_uses_it_is_named_before_it_is_removed(here):
    here("data", "add", "mine.csv", "--name", "other")
    others = {path: content for path, content in kept().items() if path.startswith("data/other")}
    Path("experiments").mkdir()
    about = Manifest.load().entry("mine")
    tuning = tuning_of("mine", about)
    write_experiment(tuning_name("mine"), tuning)
    write_experiment("mine", experiment_of("mine", about, tuning))
    write_experiment("broken", {"title": "No variants"})
    for number in range(12):
        write_json(Path(f"runs/{number:016x}/job.json"), {"model": "han", "network": {}, "data": "mine"})
    write_json(Path("runs/ffff/job.json"), {"model": "han", "network": {}, "data": "other"})
    write_json(Path("reports/mine/plan.json"), {"data": {"mine": {}}})
    write_json(Path("results/both/plan.json"), {"data": {"mine": {}, "other": {}}})
    write_json(Path("results/other/plan.json"), {"data": {"other": {}}})
    before = kept()
    said = here("data", "remove", "mine", code=2)
    assert "--yes" in said and "runs: 12" in said and kept() == before
    lines = here("data", "remove", "mine", "--yes").splitlines()
    assert f"runs: 12 ({', '.join(f'{number:016x}' for number in range(10))} and 2 more)" in lines
    assert "reports: 2 (reports/mine, results/both)" in lines
    assert "experiments: 2 (mine, mine-tuning)" in lines
    assert "unreadable files: 1 (experiments/broken.yaml)" in lines
    assert any("dvc add data" in line for line in lines)
    assert kept() == {**others, "data.manifest.json": Path("data.manifest.json").read_bytes()}
    assert set(json.loads(before["data.manifest.json"])["datasets"]) - set(Manifest.load().datasets) == {"mine"}
    assert len(list(Path("runs").glob("*/job.json"))) == 13


@pytest.mark.parametrize(
    ("name", "named"), [("mini", "'mine'"), ("digits", "of the project"), ("../mine", "'../mine'")]
)
def test_an_unknown_name_and_a_data_set_of_the_project_are_refused(here, name, named):
    before = kept()
    assert named in here("data", "remove", name, "--yes", code=2)
    assert kept() == before


def test_data_in_a_folder_that_is_no_project_is_removed(here):
    for name in ("params.yaml", "data.manifest.json"):
        Path(name).unlink()
    assert "there is nothing to remove" in here("data", "remove", "mine", "--yes", code=2)
    here("data", "add", "mine.csv")
    assert "removed 'mine'" in here("data", "remove", "mine", "--yes")
    assert not Path("data/mine").exists() and not Path("runs").exists()


@pytest.mark.parametrize("answer", ["n", "", "yes"])
def test_it_asks_on_a_terminal(here, answer):
    before = kept()
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "reread", "data", "remove", "mine"],
        stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        os.write(ours, f"{answer}\n".encode())
        said, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and "no run, report or experiment uses it" in said and "[y/N]" in said
    assert ("nothing was removed" in said) == (kept() == before) == (answer != "yes")
    assert Path("data/mine").exists() == (answer != "yes")


@pytest.mark.parametrize("fault", FAULTS)
def test_nothing_is_half_removed(here, fault):
    before = kept()
    done = subprocess.run([sys.executable, "-c", BROKEN.format(fault=fault)], capture_output=True, text=True)
    assert done.returncode == FAULTS[fault]
    assert "mine" in Manifest.load().datasets
    if done.returncode == 2:
        assert kept() == before and open_data_set("mine").entry.rows == 60
        return
    listed = json.loads(here("data", "list", "--json"))
    assert {data_set["name"]: data_set["files"] for data_set in listed}["mine"] == "missing"
    here("data", "remove", "mine", "--yes")
    assert "mine" not in Manifest.load().datasets and not list(Path("data").iterdir())


def test_data_that_is_being_added_is_left_alone(here):
    from reread.commands.data_add import lock_of

    before = kept()
    with file_lock(lock_of("mine")):
        done = subprocess.run(
            [sys.executable, "-m", "reread", "data", "remove", "mine", "--yes"], capture_output=True, text=True
        )
    assert done.returncode == 2 and "'mine'" in done.stderr and kept() == before


def test_dvc_has_the_data_that_it_had_before_the_add(project):
    manifest = (project.directory / "data.manifest.json").read_bytes()
    (project.directory / "mine.csv").write_text(
        "text,label\n" + "".join(f"Text number {row},{'ab'[row % 2]}\n" for row in range(60))
    )
    project.run("dvc", "add", "data")
    recorded = (project.directory / "data.dvc").read_bytes()
    project.run("python", "-m", "reread", "data", "add", "mine.csv")
    project.run("dvc", "add", "data")
    assert (project.directory / "data.dvc").read_bytes() != recorded
    project.run("python", "-m", "reread", "data", "remove", "mine", "--yes")
    project.run("dvc", "add", "data")
    assert (project.directory / "data.dvc").read_bytes() == recorded
    assert (project.directory / "data.manifest.json").read_bytes() == manifest
