"""Packing: each call adds what is new, parts are whole archives, and unpacked runs are those that were packed."""

import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from reread.storage.errors import InputError
from tests.conftest import run_python
from tests.golden.data import WRITERS


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Path:
    """A training machine with three jobs of one variant, of which two are trained and one of these evaluated."""
    folder = tmp_path_factory.mktemp("machine")
    WRITERS["images"](folder / "prepared/digits")
    for seed in (1, 2, 3):
        run = folder / f"runs/seed{seed}"
        run.mkdir(parents=True)
        training = {"max_epochs": 2, "batch_size": 8, "learning_rate": 0.1, "optimizer": {"name": "sgd"}}
        job = {
            "run_key": run.name, "variant": "small", "experiment": "tiny", "seed": seed, "model": "densenet",
            "data": "digits", "prepared": "prepared/digits", "run_directory": f"runs/{run.name}",
            "network": {"depth": 10, "growth_rate": 4}, "training": training,
        }  # fmt: skip
        (run / "job.json").write_text(json.dumps(job))
    call(folder, "reread.training", "runs/seed1/job.json", "runs/seed2/job.json")
    call(folder, "reread.evaluation", "runs/seed1")
    return folder


def call(folder: Path, module: str, *arguments: str) -> subprocess.CompletedProcess:
    done = run_python("-m", module, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return done


def pack(folder: Path, *arguments: str) -> list[str]:
    jobs = folder / "jobs.txt"
    jobs.write_text("".join(f"runs/seed{seed}/job.json\n" for seed in (1, 2, 3)))
    return call(folder, "reread.evaluation.pack", "@jobs.txt", "--to", "packs", *arguments).stdout.split()


def test_each_call_adds_what_is_new(machine, tmp_path):
    folder = tmp_path / "machine"
    shutil.copytree(machine, folder)
    assert pack(folder) == ["packs/runs-0001.tar.xz", "packs/weights-seed1.tar"]
    assert pack(folder) == []
    call(folder, "reread.evaluation", "runs/seed2")
    call(folder, "reread.training", "runs/seed3/job.json")
    assert pack(folder)[0] == "packs/runs-0002.tar.xz"
    home = tmp_path / "home"
    home.mkdir()
    for part in sorted((folder / "packs").glob("*.tar*")):
        with tarfile.open(part) as archive:
            archive.extractall(home, filter="data")
    unpacked = {path.relative_to(home) for path in home.rglob("*") if path.is_file()}
    assert {path.name for path in unpacked if path.suffix == ".safetensors"} == {"best.safetensors"}
    for path in unpacked:
        assert (home / path).read_bytes() == (folder / path).read_bytes()
    packed = {path for path in unpacked if path.suffix != ".safetensors"}
    there = {path.relative_to(folder) for path in folder.glob("runs/seed*/**/*") if path.is_file()}
    assert packed == {path for path in there if path.suffix != ".safetensors" and "checkpoints" not in path.parts
                      and path.name != "log.txt"}  # fmt: skip


def test_an_evaluation_that_is_being_written_is_left_for_the_next_call(machine, tmp_path):
    folder = tmp_path / "machine"
    shutil.copytree(machine, folder)
    (evaluation,) = (folder / "runs/seed1/evaluation").iterdir()
    evaluation.rename(hidden := evaluation.with_name(f".{evaluation.name}.a1b2c3"))
    with tarfile.open(folder / pack(folder)[0]) as archive:
        assert not [name for name in archive.getnames() if "evaluation" in name]
    hidden.rename(evaluation)
    assert "packs/runs-0002.tar.xz" in pack(folder)


def test_the_weights_of_a_better_seed_replace_those_before(machine, tmp_path):
    folder = tmp_path / "machine"
    shutil.copytree(machine, folder)
    call(folder, "reread.evaluation", "runs/seed2")
    pack(folder)
    state = json.loads((folder / "packs/packed.json").read_text())
    best = state["weights"]["tiny/small"]
    other = {"seed1": "seed2", "seed2": "seed1"}[best]
    # As if the other seed had been the best when the first call was made.
    (folder / f"packs/weights-{best}.tar").rename(folder / f"packs/weights-{other}.tar")
    (folder / "packs/packed.json").write_text(json.dumps({**state, "weights": {"tiny/small": other}}))
    assert pack(folder) == [f"packs/weights-{best}.tar"]
    assert [path.name for path in (folder / "packs").glob("weights-*")] == [f"weights-{best}.tar"]


def test_parts_have_at_most_the_given_size_and_a_large_run_one_of_its_own(machine, tmp_path):
    from reread.evaluation.pack import files_of, parts

    runs = [(machine / f"runs/seed{seed}", files_of(machine / f"runs/seed{seed}")) for seed in (1, 2)]
    sizes = [sum(path.stat().st_size for path in files) for _, files in runs]
    assert len(list(parts(runs, sum(sizes)))) == 1
    assert len(list(parts(runs, sum(sizes) - 1))) == 2
    assert len(list(parts(runs, 1))) == 2


def test_a_damaged_run_is_not_packed(machine, tmp_path, monkeypatch):
    from reread.evaluation.pack import pack as pack_here

    folder = tmp_path / "machine"
    shutil.copytree(machine, folder)
    monkeypatch.chdir(folder)
    history = folder / "runs/seed1/history.csv"
    history.write_text(history.read_text().replace("1", "2", 1))
    with pytest.raises(InputError, match=r"history\.csv"):
        pack_here([Path("runs/seed1/job.json")], Path("packs"))
    assert not list((folder / "packs").glob("*.tar*"))


def test_the_entry_of_a_test_read_travels_with_its_run(machine, tmp_path):
    folder = tmp_path / "machine"
    shutil.copytree(machine, folder)
    call(folder, "reread.evaluation", "--test", "runs/seed1")
    pack(folder)
    with tarfile.open(folder / "packs/runs-0001.tar.xz") as archive:
        assert "runs/seed1/evaluation/test-reads.jsonl" in archive.getnames()
