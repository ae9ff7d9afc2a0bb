"""Runs of older code get their key of today where their first epochs are equal, and are left where they differ."""

import os
import shutil
from pathlib import Path

import pytest

from reread.planning.adopt import adopt
from reread.planning.resolve import make_plan
from reread.preprocessing.prepare import prepare
from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.run_folder import RunFolder, write_result
from reread.storage.source import ROOT
from reread.training.launcher import run_training
from tests.conftest import NOT_INHERITED
from tests.reread.commands.conftest import make_folder

SELECTED = ["--experiment", "tiny", "--variant", "densenet-relu"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A project with one finished run whose key is another than today's; return its folder and today's job."""
    folder = make_folder(tmp_path_factory.mktemp("trained"))
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(NOT_INHERITED):
                patch.delenv(name)
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        plan = make_plan("tiny", ["densenet-relu"], [0])
        for about in plan.preparations().values():
            prepare(about["data"], about["settings"])
        (job,) = plan.jobs()
        run_training(job, lambda event: None)
    directory = folder / "old" / ("0" * 16)
    directory.parent.mkdir()
    (folder / job.run_directory).rename(directory)
    write_json(directory / "job.json", {**read_json(directory / "job.json"), "run_key": directory.name})
    write_result(directory, {**read_json(directory / "result.json"), "run_key": directory.name})
    # Golden runs do not prove this source equal to today's.
    written = read_json(directory / "job.json")
    write_json(directory / "job.json", {**written, "key_parts": {**written["key_parts"], "source": "0" * 64}})
    return folder, job


@pytest.fixture
def old(trained, reread, tmp_path, monkeypatch):
    """A copy of that project as the current folder; return the folder of its run and today's job."""
    folder, job = trained
    shutil.copytree(folder, tmp_path / "project", symlinks=True)
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return tmp_path / "project" / "old" / ("0" * 16), job


def test_a_run_whose_first_epochs_are_equal_is_copied_to_its_key_of_today(reread, old):
    directory, job = old
    assert "adopted" in reread("adopt", *SELECTED, "--from", "old", "--epochs", "2")
    adopted = job.run_directory
    assert read_json(adopted / "job.json") == {**job.to_json(), "adopted_from": directory.name}
    assert read_json(adopted / "result.json")["run_key"] == job.run_key
    for name in ("best.safetensors", "history.csv"):
        assert (adopted / name).read_bytes() == (directory / name).read_bytes()
    assert not list(Path("runs/.adopted").glob("[!.]*")) and directory.is_dir()
    # It is reused.
    assert make_plan("tiny", ["densenet-relu"], [0]).unfinished() == []


def test_a_link_in_an_old_run_is_not_followed(old, tmp_path):
    directory, job = old
    (tmp_path / "secret").write_text("secret")
    (directory / "log.txt").unlink()
    (directory / "log.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(InputError, match=r"log\.txt"):
        adopt(job, RunFolder(directory))
    assert not job.run_directory.exists()


def test_a_run_that_is_trained_differently_today_is_left(reread, old):
    directory, job = old
    history = (directory / "history.csv").read_text()
    (directory / "history.csv").write_text(history.replace("\n1,", "\n1,0", 1))
    write_result(directory, read_json(directory / "result.json"))
    assert "densenet-relu: left" in reread("adopt", *SELECTED, "--from", "old", code=1)
    assert not job.run_directory.exists()


def test_a_run_whose_source_is_proven_equal_is_adopted_without_training(reread, old):
    directory, job = old
    (directory / "history.csv").write_text("")
    write_result(directory, read_json(directory / "result.json"))
    write_json(directory / "job.json", {**read_json(directory / "job.json"), "key_parts": job.key_parts})
    assert "golden runs are equal" in reread("adopt", *SELECTED, "--from", "old")
    assert job.run_directory.is_dir()


def test_where_nothing_can_be_adopted_it_is_refused(reread, old):
    directory, _ = old
    shutil.rmtree(directory)
    assert "--from" in reread("adopt", *SELECTED, "--from", "old", code=2)


def test_the_first_epochs_may_be_trained_on_another_machine(reread, old):
    directory, job = old
    proof = Path("there") / job.run_key
    proof.mkdir(parents=True)
    rows = (directory / "history.csv").read_text().splitlines()[:2]
    (proof / "history.csv").write_text("\n".join(rows))
    assert "dry run" in reread("adopt", *SELECTED, "--from", "old", "--proof", "there", "--dry-run")
    assert not job.run_directory.exists()
    reread("adopt", *SELECTED, "--from", "old", "--proof", "there")
    assert job.run_directory.is_dir()
