"""A file that is not the one that was written is found where it is opened."""

import json
import os
import shutil

import numpy as np
import pytest

from reread.storage import digests
from reread.storage.digests import Damaged, current_sha256, digested_directory, refuse_damaged_folder, require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_json, sha256_file, write_json
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import RunFolder, write_result
from tests.damage import damages, trap
from tests.golden.data import write_images


@pytest.fixture
def prepared(tmp_path):
    """Prepared arrays as preprocessing publishes them."""
    write_images(tmp_path / "written")
    with digested_directory(tmp_path / "prepared") as working:
        shutil.copytree(tmp_path / "written", working, dirs_exist_ok=True)
    return tmp_path / "prepared"


@pytest.fixture
def run(tmp_path):
    run = RunFolder(tmp_path / "runs" / "key")
    run.directory.mkdir(parents=True)
    (run.directory / "history.csv").write_text("epoch,training_loss\n1,0.5\n")
    (run.directory / "best.safetensors").write_bytes(bytes(range(256)) * 4)
    write_result(run.directory, {"epochs": 1, "weights_sha256": sha256_file(run.directory / "best.safetensors")})
    return run


def test_a_folder_has_the_digest_of_each_file(tmp_path):
    with digested_directory(tmp_path / "folder", known={"b": "0" * 64}) as working:
        (working / "a").write_text("a")
        (working / "b").write_text("b")
    written = read_json(tmp_path / "folder" / "digests.json")
    assert written == {"files": {"a": sha256_file(tmp_path / "folder" / "a"), "b": "0" * 64}}
    assert require_intact(tmp_path / "folder" / "a", "make it again").name == "a"
    with pytest.raises(InputError, match="b is damaged: .*: make it again"):
        require_intact(tmp_path / "folder" / "b", "make it again")
    (tmp_path / "folder" / "a").unlink()
    with pytest.raises(Damaged, match="a is missing"):
        refuse_damaged_folder(tmp_path / "folder")


@pytest.mark.parametrize("file", ["images.npy", "labels.npy", "prepared.json"])
def test_each_damage_of_prepared_arrays_is_found(prepared, file):
    open_prepared(prepared)
    for damage in damages(prepared / file):
        with pytest.raises(InputError, match="remove .* prepared again|restore it") as error:
            open_prepared(prepared)
        assert str(prepared) in str(error.value) and "\n" not in str(error.value), damage
    open_prepared(prepared)


@pytest.mark.parametrize("file", ["result.json", "history.csv", "best.safetensors", "digests.json"])
def test_each_damage_of_a_finished_run_is_found(run, file):
    run.refuse_damage()
    for damage in damages(run.directory / file):
        damaged = RunFolder(run.directory)
        assert damaged.damage(), damage
        with pytest.raises(InputError, match="train it again"):
            damaged.refuse_damage()
    assert RunFolder(run.directory).damage() is None
    # Weights may be on another machine.
    run.weights.unlink()
    assert RunFolder(run.directory).damage() is None


def test_a_finished_run_without_digests_is_damaged(run):
    (run.directory / "digests.json").unlink()
    (run.directory / "history.csv").write_text("epoch,training_loss\n1,0.1\n")
    damaged = RunFolder(run.directory)
    assert f"{run.directory}/digests.json is missing" in damaged.damage()
    for read in (damaged.history, damaged.require_result, damaged.refuse_damage):
        with pytest.raises(InputError, match=r"digests\.json is missing.*train it again"):
            read()
    # A run of results/ has no checkpoint: it is restored again.
    write_json(run.directory / "published.json", {"run_key": "key"})
    with pytest.raises(InputError, match=f"digests.json is missing.*remove {run.directory} and run again"):
        RunFolder(run.directory).refuse_damage()
    # A served model has the result alone.
    (run.directory / "history.csv").unlink()
    assert RunFolder(run.directory).require_result()["epochs"] == 1


def test_a_digest_names_no_file_outside_of_its_folder(run):
    write_json(run.directory / "digests.json", {"files": {"../../secret": "0" * 64}})
    with pytest.raises(InputError, match=r"digests\.json is damaged"):
        _ = run.result


def test_an_array_outside_of_its_folder_or_with_a_pickle_in_it_is_refused(prepared, tmp_path):
    (prepared / "digests.json").unlink()
    description = read_json(prepared / "prepared.json")
    np.save(prepared / "labels.npy", np.array([trap(tmp_path / "ran")], dtype=object), allow_pickle=True)
    description["arrays"]["labels"]["sha256"] = sha256_file(prepared / "labels.npy")
    write_json(prepared / "prepared.json", description)
    with pytest.raises(InputError, match=r"labels\.npy is no array"):
        open_prepared(prepared)
    (prepared / "labels.npy").write_bytes(trap(tmp_path / "ran"))
    with pytest.raises(InputError, match=r"labels\.npy is no array"):
        open_prepared(prepared, verify=False)
    description["arrays"]["labels"]["file"] = "../written/labels.npy"
    write_json(prepared / "prepared.json", description)
    with pytest.raises(InputError, match=r"'\.\./written/labels\.npy'"):
        open_prepared(prepared)
    assert not (tmp_path / "ran").exists()


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path, read = tmp_path / "file", []
    path.write_text("1")
    monkeypatch.setattr(digests, "sha256_file", lambda path: read.append(path) or sha256_file(path))
    now = path.stat().st_ctime
    # A file of this moment may change again in the same tick of the clock.
    assert current_sha256(path) == current_sha256(path) and len(read) == 2
    monkeypatch.setattr(digests.time, "time", lambda: now + 60)
    assert current_sha256(path) == current_sha256(path) and len(read) == 3
    path.write_text(json.dumps("changed"))
    monkeypatch.setattr(digests.time, "time", lambda: path.stat().st_ctime + 60)
    assert current_sha256(path) == sha256_file(path) and len(read) == 4


def test_a_change_that_keeps_size_and_mtime_is_found(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("1")
    monkeypatch.setattr(digests.time, "time", lambda: path.stat().st_ctime + 60)
    times = path.stat()
    assert current_sha256(path) == sha256_file(path)
    # The clock of a file system ticks in milliseconds.
    while path.stat().st_ctime_ns == times.st_ctime_ns:
        path.write_text("2")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert path.stat().st_mtime_ns == times.st_mtime_ns
    assert current_sha256(path) == sha256_file(path)
