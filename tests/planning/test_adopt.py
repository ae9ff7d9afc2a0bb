"""Runs of older source are adopted where golden runs prove both sources equal."""

from pathlib import Path

import pytest

import models
from planning import keys
from planning.adopt import FILE, adopt, golden_runs_are_equal, old_run, record_source, require_agreement
from storage.errors import InputError
from storage.files import read_json, write_json
from storage.run_folder import RunFolder
from tests.golden.cases import CASES
from tests.golden.equivalent import source
from training.machine import machine

MODULES = ["training.loop", "models.densenet"]
OLD, OLDER = "1" * 64, "2" * 64


def job(root: Path, digest: str, seed: int = 0, cuda: str | None = None, **training) -> dict:
    parts = {"model": "densenet", "network": {}, "training": training, "seed": seed, "data": "d"}
    parts["machine"] = {**machine(), "cuda": cuda}
    parts["source"] = digest
    key = keys.run_key(parts)
    return {
        "run_key": key, "key_parts": parts, "source": {"modules": MODULES, "digest": digest, "files": {}},
        "machine": parts["machine"], "experiment": "e", "variant": "relu", "model": "densenet", "network": {},
        "training": training, "data": "digits", "seed": seed, "run_directory": str(root / key),
    }  # fmt: skip


def write_run(about: dict) -> RunFolder:
    folder = Path(about["run_directory"])
    write_json(folder / "job.json", about)
    (folder / "best.safetensors").write_bytes(b"weights")
    (folder / "history.csv").write_text("epoch\n1\n")
    write_json(folder / "result.json", {"run_key": about["run_key"], "weights_sha256": "w"})
    return RunFolder(folder)


@pytest.fixture
def today() -> str:
    return keys.source_of(MODULES)["digest"]


@pytest.fixture
def proven(tmp_path, today) -> Path:
    """A list that has OLD and today's source, and not OLDER."""
    path = tmp_path / "equivalent.json"
    record_source(MODULES, OLD, unchanged=True, equivalent=path)
    record_source(MODULES, today, unchanged=True, equivalent=path)
    return path


def test_a_run_is_copied_to_the_key_of_today_with_its_job_and_result(tmp_path, today):
    old, new = write_run(job(tmp_path, OLD)), job(tmp_path, today)
    adopt(new, old)
    folder = tmp_path / new["run_key"]
    assert (folder / "best.safetensors").read_bytes() == b"weights" and old.finished
    assert read_json(folder / "job.json") == {**new, "adopted_from": old.key}
    network_source = models.network_source("densenet", {})
    result = {"run_key": folder.name, "weights_sha256": "w", "network_source": network_source}
    assert read_json(folder / "result.json") == result


def test_golden_runs_prove_two_sources_equal_and_nothing_else(tmp_path, proven, today):
    new = job(tmp_path, today)
    assert golden_runs_are_equal(new, job(tmp_path, OLD), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLDER), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLD, learning_rate=0.5), proven)
    assert not golden_runs_are_equal(new, {}, proven)
    assert not golden_runs_are_equal(job(tmp_path, today, cuda="13.0"), job(tmp_path, OLD, cuda="13.0"), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLD), tmp_path / "missing.json")


def test_a_golden_run_that_changed_begins_a_new_list(tmp_path, proven, today):
    record_source(MODULES, today, unchanged=False, equivalent=proven)
    assert not golden_runs_are_equal(job(tmp_path, today), job(tmp_path, OLD), proven)


def test_the_old_run_of_a_job_is_found_and_two_are_refused(tmp_path, today):
    first, other = write_run(job(tmp_path, OLD)), write_run(job(tmp_path, OLD, seed=1))
    assert old_run(job(tmp_path, today, seed=1), [first, other]) is other
    assert old_run(job(tmp_path, today, seed=2), [first, other]) is None
    second = write_run(job(tmp_path, OLDER, learning_rate=0.5))
    with pytest.raises(InputError, match=r"seed 0"):
        old_run(job(tmp_path, today), [first, second])
    with pytest.raises(InputError, match=r"training"):
        require_agreement("relu", [other, second])


def test_each_golden_case_has_a_list():
    known = read_json(FILE)
    assert {" ".join(source(case)["modules"]) for case in CASES.values()} <= set(known)
