"""Augmentation in the training loop: drawn from (seed, epoch), and seen by training alone."""

import json

import pytest
import torch

import models
from reread.batches.collation import inputs
from reread.storage.prepared import open_prepared
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.reread.training.outcome import outcome

ALL = [{"name": "shift", "pixels": 2}, {"name": "flip"}, {"name": "cutout", "size": 3}]


@pytest.fixture
def train_here():
    """Train a job in this process and return its folder; with ``epochs`` it ends like a killed one after so many."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()

    class Killed(Exception):
        pass

    class Ended(Progress):
        def epoch(self, row, steps):
            if row["epoch"] == self.epochs:
                raise Killed

    def train(path, epochs=None):
        job = TrainingJob.read(path)
        if epochs is None:
            run(job, json.loads(path.read_text()), Progress(job, events=False))
        else:
            progress = Ended(job, events=False)
            progress.epochs = epochs
            with pytest.raises(Killed):
                run(job, json.loads(path.read_text()), progress)
        return job.run_directory

    yield train
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


def test_a_resumed_run_sees_the_same_augmented_images(train_here, write_job, image_directory):
    jobs = [
        write_job(image_directory, name, "densenet", run_key="same", training={"augmentation": ALL})
        for name in ("whole", "killed")
    ]
    whole, killed = train_here(jobs[0]), train_here(jobs[1], epochs=2)
    assert not (killed / "result.json").exists()
    train_here(jobs[1])
    assert outcome(whole) == outcome(killed)


def test_training_is_augmented_and_validation_is_not(train_here, write_job, image_directory, monkeypatch):
    seen = {True: [], False: []}
    build = models.build

    def observed(*arguments):
        network = build(*arguments)
        network.register_forward_pre_hook(lambda module, given: seen[module.training].append(given[0].clone()))
        return network

    monkeypatch.setattr(models, "build", observed)
    train_here(write_job(image_directory, "key", "densenet", training={"augmentation": ALL, "max_epochs": 2}))
    prepared = open_prepared(image_directory)
    (original,) = inputs(prepared, prepared.rows("train"))
    (expected,) = inputs(prepared, prepared.rows("validation"))
    for validated in seen[False]:
        assert torch.equal(validated, expected)
    assert len(seen[False]) == 2 and len(seen[True]) == 2 * 8
    trained = torch.cat(seen[True])
    same = (trained.unsqueeze(1) == original).flatten(2).all(dim=2)
    assert not same.any(), "a square of each image is cut out"
