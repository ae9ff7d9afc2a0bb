"""A job and its file: what is written is read again, and what a file lacks is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from reread.storage.errors import InputError
from reread.storage.files import read_json, write_json
from reread.storage.job import Job

JOB = Job(
    run_key="0123456789abcdef", experiment="tiny", variant="han", model="han", data="snippets", seed=3,
    network={"hidden_size": 4}, training={"max_epochs": 2}, prepared=Path("prepared/0"),
    run_directory=Path("runs/0123456789abcdef"), key_parts={"seed": 3}, machine={"cuda": None},
)  # fmt: skip


@pytest.mark.parametrize("job", [JOB, replace(JOB, fold=0, folds=5, processes=2)])
def test_a_job_is_read_as_it_was_written(job, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job.write()
    assert Job.read(job.run) == job
    # What `reread jobs` and `reread adopt` add is of the file alone.
    write_json(job.file, {**read_json(job.file), "checkout": ["0123abc", False], "trial": "han/a=1"})
    assert Job.read(job.run) == job


def test_the_file_has_an_entry_for_each_field_and_none_for_folds_that_are_not():
    written = {
        "run_key": "0123456789abcdef", "experiment": "tiny", "variant": "han", "model": "han", "data": "snippets",
        "seed": 3, "network": {"hidden_size": 4}, "training": {"max_epochs": 2}, "prepared": "prepared/0",
        "run_directory": "runs/0123456789abcdef", "key_parts": {"seed": 3}, "machine": {"cuda": None},
        "runs_per_gpu": 1, "processes": 1,
    }  # fmt: skip
    assert JOB.to_json() == written
    assert replace(JOB, fold=0, folds=5).to_json() == {**written, "fold": 0, "folds": 5}


def test_a_run_is_named_by_its_variant_seed_and_fold():
    assert JOB.name == "han seed 3" and replace(JOB, fold=0, folds=5).name == "han seed 3 fold 0 of 5"


@pytest.mark.parametrize("entry", ["variant", "experiment", "prepared", "run_directory"])
def test_a_file_that_was_written_by_hand_and_lacks_an_entry_is_refused(entry, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    given = json.loads(json.dumps(JOB.to_json()))
    del given[entry]
    write_json(JOB.file, given)
    with pytest.raises(InputError, match=f"'{entry}'"):
        Job.read(JOB.run)
