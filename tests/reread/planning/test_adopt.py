"""Runs of older source are adopted where golden runs prove both sources equal."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import models
from reread.evaluation.run import find_evaluation
from reread.goals import goal
from reread.planning import keys
from reread.planning.adopt import (
    FILE,
    adopt,
    golden_runs_are_equal,
    old_run,
    record_source,
    require_agreement,
    source_there,
    sources_are_equal,
)
from reread.storage.digests import digested_directory
from reread.storage.errors import InputError
from reread.storage.files import content_key, read_json, write_json
from reread.storage.job import Job
from reread.storage.ledger import read_ledger, reads_file
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import RunFolder, write_result
from reread.training.machine import machine
from tests.golden.cases import CASES
from tests.golden.data import WRITERS
from tests.golden.equivalent import source
from tests.reads import every_test_split
from tests.rooms import copy_rooms

MODULES = ["reread.training.loop", "reread.storage.prepared:open_prepared", "models.densenet"]
OLD, OLDER = "1" * 64, "2" * 64


def job(root: Path, digest: str, seed: int = 0, cuda: str | None = None, **training) -> Job:
    parts = {"model": "densenet", "network": {}, "training": training, "seed": seed, "data": "d"}
    parts["machine"] = {**machine(), "cuda": cuda}
    parts["source"] = digest
    key = content_key(parts)
    return Job(
        run_key=key, key_parts=parts, source={"modules": MODULES, "digest": digest, "files": {}},
        machine=parts["machine"], experiment="e", variant="relu", model="densenet", network={}, training=training,
        data="digits", seed=seed, prepared=Path("prepared/0"), run_directory=root / key,
    )  # fmt: skip


def write_run(about: Job) -> RunFolder:
    folder = about.run_directory
    about.write()
    (folder / "best.safetensors").write_bytes(b"weights")
    (folder / "history.csv").write_text("epoch\n1\n")
    write_result(folder, {"run_key": about.run_key, "weights_sha256": "w"})
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
    folder = tmp_path / new.run_key
    assert (folder / "best.safetensors").read_bytes() == b"weights" and old.finished
    assert read_json(folder / "job.json") == {**new.to_json(), "adopted_from": old.key}
    network_source = models.network_source("densenet", {})
    result = {"run_key": folder.name, "weights_sha256": "w", "network_source": network_source}
    assert read_json(folder / "result.json") == result


def test_golden_runs_prove_two_sources_equal_and_nothing_else(tmp_path, proven, today):
    new = job(tmp_path, today)
    assert golden_runs_are_equal(new, job(tmp_path, OLD).to_json(), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLDER).to_json(), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLD, learning_rate=0.5).to_json(), proven)
    assert not golden_runs_are_equal(new, {}, proven)
    on_gpu, before = (job(tmp_path, digest, cuda="13.0") for digest in (today, OLD))
    assert not golden_runs_are_equal(on_gpu, before.to_json(), proven)
    assert not golden_runs_are_equal(new, job(tmp_path, OLD).to_json(), tmp_path / "missing.json")


def test_a_golden_run_that_changed_begins_a_new_list(tmp_path, proven, today):
    record_source(MODULES, today, unchanged=False, equivalent=proven)
    assert not golden_runs_are_equal(job(tmp_path, today), job(tmp_path, OLD).to_json(), proven)


def test_the_old_run_of_a_job_is_found_and_two_are_refused(tmp_path, today):
    first, other = write_run(job(tmp_path, OLD)), write_run(job(tmp_path, OLD, seed=1))
    assert old_run(job(tmp_path, today, seed=1), [first, other]) is other
    assert old_run(job(tmp_path, today, seed=2), [first, other]) is None
    second = write_run(job(tmp_path, OLDER, learning_rate=0.5))
    with pytest.raises(InputError, match=r"seed 0"):
        old_run(job(tmp_path, today), [first, second])
    with pytest.raises(InputError, match=r"training"):
        require_agreement("relu", [other, second])


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A copy of the source; a test may edit it before jobs are made of it."""
    return copy_rooms(tmp_path / "checkout")


def at(checkout: Path, root: Path, cuda: bool = False) -> dict:
    """A job of the source in a checkout, as older code wrote it: its machine has the key of all kernels."""
    digest, kernels = source_there(checkout, tuple(MODULES))
    old = job(root, digest).to_json()
    old["machine"] |= {"cuda": "13.0", "kernels": f"extension {kernels}; compiled for sm_90"} if cuda else {}
    return {**old, "key_parts": {**old["key_parts"], "machine": old["machine"]}}


def of_today(root: Path, cuda: bool = False) -> Job:
    source = keys.source_of(MODULES)
    new = job(root, source["digest"])
    machine = {**new.machine, **({"cuda": "13.0", "kernels": "extension; compiled for sm_90"} if cuda else {})}
    kernels = {"kernels": source["kernels"]} if cuda else {}
    return replace(new, source=source, machine=machine, key_parts={**new.key_parts, **kernels, "machine": machine})


@pytest.mark.parametrize("cuda", [False, True])
def test_the_source_that_trained_a_run_proves_it_equal_on_a_gpu_as_well(tmp_path, checkout, cuda):
    new, old = of_today(tmp_path, cuda), at(checkout, tmp_path, cuda)
    assert sources_are_equal(new, old, checkout)
    other = {**new.key_parts, "training": {"learning_rate": 0.5}}
    assert not sources_are_equal(replace(new, key_parts=other), old, checkout)
    if cuda:
        for kernels in ("reference", "extension"):
            machine = {**new.machine, "kernels": kernels}
            assert not sources_are_equal(replace(new, machine=machine), old, checkout)
        unknown = {**old, "machine": {**old["machine"], "kernels": "extension 0123456789abcdef; compiled for sm_90"}}
        with pytest.raises(InputError, match="checkout"):
            sources_are_equal(new, unknown, checkout)


@pytest.mark.parametrize(
    ("file", "cuda", "equal"),
    [
        ("reread/storage/prepared.py", False, False),
        ("cuda_ext/batch_norm_activation/norm.cuh", True, False),
        ("cuda_ext/gru/gru.cuh", True, True),
    ],
)
def test_another_source_proves_nothing(tmp_path, checkout, file, cuda, equal):
    added = (
        "\nSPLITS = SPLITS[:2]\nPrepared.rows = None\n" if file.endswith(".py") else "\nconstexpr int kAnother = 1;\n"
    )
    with open(checkout / file, "a") as stream:
        stream.write(added)
    assert sources_are_equal(of_today(tmp_path, cuda), at(checkout, tmp_path, cuda), checkout) == equal


def test_a_checkout_of_another_source_than_the_run_s_is_refused(tmp_path, checkout):
    old = at(checkout, tmp_path)
    with pytest.raises(InputError, match="checkout"):
        sources_are_equal(of_today(tmp_path), {**old, "source": {**old["source"], "digest": OLD}}, checkout)
    with pytest.raises(InputError, match="no checkout"):
        sources_are_equal(of_today(tmp_path), old, tmp_path)


def test_evaluations_are_adopted_where_today_s_metrics_agree(tmp_path, today, monkeypatch):
    monkeypatch.chdir(tmp_path)
    WRITERS["images"](tmp_path / "arrays")
    prepared = open_prepared(tmp_path / "arrays")
    old, new = write_run(job(tmp_path, OLD)), replace(job(tmp_path, today), prepared=prepared.directory)
    write_json(old.directory / "environment.json", {"torch": "2.11.0", "numpy": "2.5.2", "gpu": None, "kernels": None})
    for name, splits, error in (("a", ["validation"], 0.1), ("b", ["validation", "test"], 0.0)):
        with every_test_split():
            labels = {split: prepared.labels[prepared.rows(split)] for split in splits}
        probabilities = {split: np.full((len(of_it), 3), 1 / 3, np.float32) for split, of_it in labels.items()}
        metrics = goal("single-label").measure(probabilities, labels, prepared.classes)
        metrics["validation"]["accuracy"] += error
        with digested_directory(old.evaluation(name)) as folder:
            write_json(folder / "metrics.json", {"parameters": 7, **metrics})
            for split in splits:
                np.save(folder / f"{split}.npy", probabilities[split])
    adopt(new, old)
    folder = new.run_directory
    evaluation = find_evaluation(folder)
    assert evaluation and [path.name for path in (folder / "evaluation").iterdir()] == [evaluation.name]
    for path in old.evaluation("b").iterdir():
        assert (evaluation / path.name).read_bytes() == path.read_bytes()
    # Metrics of test are computed again, which is a read.
    assert [entry.run for entry in read_ledger(reads_file(old.directory))] == [old.key]


def test_each_golden_case_has_a_list():
    known = read_json(FILE)
    assert {" ".join(source(case)["modules"]) for case in CASES.values()} <= set(known)
