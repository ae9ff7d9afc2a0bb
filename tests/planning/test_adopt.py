"""Runs of older source whose golden runs are unchanged get their key of today."""

import json
from pathlib import Path

import pytest

from planning import keys
from planning.adopt import FILE, Adoption, adopt, record_source
from storage.files import read_json, write_json
from tests.golden.cases import CASES
from tests.golden.equivalent import source
from training.machine import machine

MODULES = ["training.loop", "models.densenet"]
OLD, OLDER = "1" * 64, "2" * 64


def write_run(root: Path, digest: str, seed: int = 0, finished: bool = True, cuda: str | None = None) -> Path:
    parts = {"model": "densenet", "network": {}, "training": {}, "seed": seed, "data": "d"}
    parts["machine"] = {**machine(), "cuda": cuda}
    parts["source"] = digest
    key = keys.run_key(parts)
    job = {
        "run_key": key, "key_parts": parts, "source": {"modules": MODULES, "digest": digest, "files": {}},
        "machine": parts["machine"], "variant": "relu", "seed": seed, "run_directory": str(root / key),
    }  # fmt: skip
    write_json(root / key / "job.json", job)
    (root / key / "best.safetensors").write_bytes(b"weights")
    if finished:
        write_json(root / key / "result.json", {"run_key": key, "weights_sha256": "w"})
    return root / key


@pytest.fixture
def proven(tmp_path) -> Path:
    """A list that has OLD and today's source, and not OLDER."""
    path = tmp_path / "equivalent.json"
    record_source(MODULES, OLD, unchanged=True, equivalent=path)
    record_source(MODULES, keys.source_of(MODULES)["digest"], unchanged=True, equivalent=path)
    return path


def test_a_run_of_an_equal_source_is_renamed_with_its_job_and_result(tmp_path, proven):
    root = tmp_path / "runs"
    old = write_run(root, OLD)
    assert adopt(root, dry_run=True, equivalent=proven)[0].new and old.is_dir()
    (adoption,) = adopt(root, equivalent=proven)
    new = root / adoption.new
    assert adoption.old == old.name and not old.exists() and (new / "best.safetensors").read_bytes() == b"weights"
    job = read_json(new / "job.json")
    assert job["run_key"] == keys.run_key(job["key_parts"]) == new.name == Path(job["run_directory"]).name
    assert job["adopted_from"] == old.name and job["source"] == keys.source_of(MODULES)
    assert read_json(new / "result.json") == {"run_key": new.name, "weights_sha256": "w"}
    assert adopt(root, equivalent=proven) == []


def test_a_run_of_another_source_or_without_a_result_is_left(tmp_path, proven):
    root = tmp_path / "runs"
    older, unfinished = write_run(root, OLDER), write_run(root, OLD, finished=False)
    gone = write_run(root, OLD, seed=1)
    gpu = write_run(root, OLD, cuda="13.0")
    job = read_json(gone / "job.json")
    write_json(gone / "job.json", {**job, "source": {**job["source"], "modules": ["training.gone"]}})
    found = {one.old: one for one in adopt(root, equivalent=proven)}
    assert set(found) == {older.name, gone.name, gpu.name} and not any(one.new for one in found.values())
    assert "golden" in found[older.name].why and "training.gone" in found[gone.name].why
    assert "GPU" in found[gpu.name].why
    assert older.is_dir() and unfinished.is_dir() and gone.is_dir()


def test_a_golden_run_that_changed_begins_a_new_list(tmp_path, proven):
    root = tmp_path / "runs"
    old = write_run(root, OLD)
    record_source(MODULES, keys.source_of(MODULES)["digest"], unchanged=False, equivalent=proven)
    assert adopt(root, equivalent=proven)[0].new is None and old.is_dir()


def test_two_runs_with_one_key_of_today_are_not_merged(tmp_path, proven):
    root = tmp_path / "runs"
    old = write_run(root, OLD)
    new = write_run(root, keys.source_of(MODULES)["digest"])
    assert adopt(root, equivalent=proven) == [Adoption(old.name, None, f"{new.name} is there already")]


def test_a_run_whose_adoption_was_cut_off_is_renamed(tmp_path, proven):
    root = tmp_path / "runs"
    old = write_run(root, OLD)
    before = json.loads((old / "job.json").read_text())
    (adoption,) = adopt(root, equivalent=proven)
    # As after a kill before the folder was renamed.
    (root / adoption.new).rename(old)
    assert adopt(root, equivalent=proven) == [adoption] and (root / adoption.new).is_dir()
    assert read_json(root / adoption.new / "job.json")["adopted_from"] == before["run_key"]


def test_each_golden_case_has_a_list(tmp_path):
    known = read_json(FILE)
    assert {" ".join(source(case)["modules"]) for case in CASES.values()} <= set(known)
