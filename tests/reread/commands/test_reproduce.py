"""Training a finished run again: with another source, with altered arrays, and without them."""

import json

import pytest

from reread.commands.compare import compare, find_trained
from reread.commands.reproduce import reproduce
from reread.planning.resolve import make_plan
from reread.storage.errors import InputError
from reread.storage.files import write_json
from reread.storage.run_folder import RunFolder

JOB = {"model": "densenet", "network": {}, "data": "digits"}


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def test_a_run_is_reproduced_and_what_has_changed_is_named(copy_of_finished):
    project = copy_of_finished
    jobs = [json.loads(path.read_text()) for path in project.directory.glob("runs/*/job.json")]
    (job,) = (job for job in jobs if job["variant"] == "densenet-swish")
    key, prepared = job["run_key"], project.directory / job["prepared"]
    original = project.directory / "runs" / key
    again = project.directory / "runs" / ".reproduced" / key
    before = contents(original)

    def reproduce(*options, code):
        return project.run("python", "-m", "reread", "reproduce", key[:8], *options, code=code)

    # Another spelling of a constant is another source and the same weights.
    project.edit("reread/batches/order.py", "POOL = 16\n", "POOL = 8 + 8\n")
    done = reproduce(code=0)
    assert f"training {key} again on cpu" in done.stdout and "epoch 3 of at most 3" in done.stdout
    assert "equal: weights" in done.stdout and "reread/batches/order.py" in done.stdout
    assert not again.parent.exists()

    # Another order of the data is another result.
    project.edit("reread/batches/order.py", "PCG64([seed, epoch])", "PCG64([seed, epoch, 1])")
    done = reproduce("--json", code=1)
    assert "different" in done.stderr and "weights_sha256" in done.stderr
    reproduced = json.loads(done.stdout)
    assert reproduced["changed"]["source"] == ["reread/batches/order.py"] and not reproduced["equal"]
    assert project.directory / reproduced["kept"] == again
    compared = compare(RunFolder(original), RunFolder(again))
    assert "reread/batches/order.py" in [entry.name for entry in compared["source"] if not entry.equal]
    assert contents(original) == before

    # Arrays that were altered.
    images = (prepared / "images.npy").read_bytes()
    (prepared / "images.npy").write_bytes(images[:-1] + b"\1")
    refused = reproduce(code=2).stderr
    assert "does not match its sha256" in refused and refused.count("\n") == 1


def test_arrays_that_are_gone_name_the_command_that_makes_them_again(shared_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(shared_folder)
    key = make_plan("tiny").variants["densenet-swish"].prepared_key
    write_json(tmp_path / "job.json", {**JOB, "prepared": f"prepared/{key}"})
    write_json(tmp_path / "result.json", {})
    with pytest.raises(
        InputError, match=f"prepared/{key} is gone: .*reread preprocess --experiment tiny --data digits"
    ):
        reproduce(RunFolder(tmp_path), print)


def test_a_run_that_is_not_finished_cannot_be_reproduced(tmp_path):
    write_json(tmp_path / "job.json", {"prepared": "prepared/0"})
    with pytest.raises(InputError, match="is not finished"):
        reproduce(RunFolder(tmp_path), print)


def test_arrays_that_no_experiment_prepares_any_more_name_their_commit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / "job.json", {**JOB, "prepared": "prepared/0"})
    write_json(tmp_path / "result.json", {})
    write_json(tmp_path / "environment.json", {"git_commit": "0123456789abcdef"})
    with pytest.raises(InputError, match="prepared/0 is gone: .* of commit 0123456789ab do"):
        reproduce(RunFolder(tmp_path), print)


@pytest.mark.parametrize("name", [".reread/runs/ab12", "ab12", "ab"])
def test_a_run_of_a_claim_names_the_command_that_repeats_it(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    write_json(tmp_path / ".reread/runs/ab12/job.json", {"arm": "control", "seed": 3, "key": "ab12"})
    with pytest.raises(InputError, match=r"\(control, seed 3\): `reread claim FILE --no-cache`"):
        find_trained(name)
