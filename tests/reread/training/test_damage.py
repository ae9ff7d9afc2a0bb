"""A damaged checkpoint or result is found, named in one line, and costs no byte of the end."""

import json
import shutil

import pytest
import torch
from torch import nn

import models
from reread.storage.digests import digested_directory
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import CHECKPOINT, RESULT, WEIGHTS
from reread.training.average import Average
from reread.training.checkpoint import Checkpoint, checkpoints
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.state import COLUMNS, State
from reread.training.validation import Validation
from tests.damage import damages, trap
from tests.reread.training.outcome import outcome


@pytest.fixture
def job(write_job, text_directory):
    return write_job(text_directory, model="word_average", training={"max_epochs": 3})


def make_checkpoint(directory):
    torch.manual_seed(0)
    network = nn.Linear(3, 2)
    optimiser = make_optimiser(network, Settings())
    return Checkpoint(directory, network, Average(network, 0), optimiser, torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize("file", [CHECKPOINT, WEIGHTS, "digests.json"])
def test_each_damage_of_a_checkpoint_is_found_and_the_one_before_it_is_used(tmp_path, file, capsys):
    kept, state = make_checkpoint(tmp_path), State()
    for score in (0.1, 0.2):
        state.record(dict.fromkeys(COLUMNS, 0.0), Validation(1.0, score, score))
        kept.save(state)
    for damage in damages(checkpoints(tmp_path)[-1] / file):
        assert make_checkpoint(tmp_path).resume().epoch == 1, damage
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and "000002" in said and "resumes after epoch 1" in said, damage
    assert make_checkpoint(tmp_path).resume().epoch == 2 and capsys.readouterr().err == ""


def test_a_run_with_a_damaged_checkpoint_ends_with_the_same_bytes(train_here, job, capsys):
    folder = train_here(job)
    whole = outcome(folder)
    for damage in ("newest", "all"):
        for name in (RESULT, WEIGHTS, "digests.json"):
            (folder / name).unlink()
        for checkpoint in checkpoints(folder)[-1 if damage == "newest" else 0 :]:
            (checkpoint / CHECKPOINT).write_bytes(b"")
        capsys.readouterr()
        assert outcome(train_here(job)) == whole
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert ("after epoch 2" if damage == "newest" else "from the beginning") in said


@pytest.mark.parametrize("file", [RESULT, WEIGHTS, "history.csv"])
def test_a_finished_run_with_a_damaged_file_is_restored_from_its_checkpoint(train_here, job, file, capsys, tmp_path):
    folder = train_here(job)
    whole = outcome(folder)
    # A pickle in place of weights, or of any other file, is never loaded.
    for content in (b"", trap(tmp_path / "ran")):
        (folder / file).write_bytes(content)
        capsys.readouterr()
        assert outcome(train_here(job)) == whole
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and file in said and "restored from its last checkpoint" in said
    (folder / file).write_bytes(b"")
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(InputError, match=f"{file}.* no checkpoint .* remove .* and run again"):
        train_here(job)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_in_place_of_weights_is_refused_where_its_digest_is_right_too(
    train_here, job, text_directory, tmp_path, capsys
):
    folder = train_here(job)
    result = json.loads((folder / RESULT).read_text())
    (folder / WEIGHTS).write_bytes(trap(tmp_path / "ran"))
    with pytest.raises(InputError, match=r"best\.safetensors has changed since training"):
        models.load(folder, open_prepared(text_directory).description)
    for name in (RESULT, WEIGHTS, "digests.json"):
        (folder / name).unlink()
    newest = checkpoints(folder)[-1]
    with digested_directory(newest, replace=True) as working:
        for name in (CHECKPOINT, WEIGHTS):
            (working / name).write_bytes(trap(tmp_path / "ran"))
    train_here(job)
    assert "resumes after epoch 2" in capsys.readouterr().err
    assert json.loads((folder / RESULT).read_text()) == result and not (tmp_path / "ran").exists()
