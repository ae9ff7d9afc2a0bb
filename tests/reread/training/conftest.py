"""Small prepared data sets on disk whose classes can be told apart, and jobs that train on them."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from reread.training.__main__ import main
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import TrainingJob
from tests.golden.data import write_prepared

DOCUMENTS, SENTENCES, WORDS, VOCABULARY, CLASSES = 96, 4, 6, 30, 3
ENDS = (64, 80, DOCUMENTS)
SMALL = {"densenet": {"depth": 10, "growth_rate": 4}, "word_average": {"embedding_dim": 8}}


@pytest.fixture(scope="session")
def text_directory(tmp_path_factory) -> Path:
    """96 documents of 3 classes; half the words are drawn from five that the class has for itself."""
    generator = np.random.default_rng(0)
    labels = (np.arange(DOCUMENTS) % CLASSES).astype(np.int32)
    return write_text_data(tmp_path_factory.mktemp("text"), generator, labels, "single-label", labels[:, None])


@pytest.fixture(scope="session")
def multi_label_directory(tmp_path_factory) -> Path:
    """96 documents of any of 3 classes, with words of each class that a document has."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (DOCUMENTS, CLASSES)).astype(np.uint8)
    # The class of each word: one that the document has (words of no class stand in for none).
    own = [np.flatnonzero(row) if row.any() else np.array([CLASSES]) for row in labels]
    return write_text_data(tmp_path_factory.mktemp("several"), generator, labels, "multi-label", own)


def write_text_data(directory: Path, generator: np.random.Generator, labels: np.ndarray, task: str, own) -> Path:
    sentence_counts = generator.integers(1, SENTENCES + 1, DOCUMENTS).astype(np.int32)
    word_counts = generator.integers(2, WORDS + 1, (DOCUMENTS, SENTENCES)).astype(np.int32)
    word_counts[np.arange(SENTENCES) >= sentence_counts[:, None]] = 0
    shape = (DOCUMENTS, SENTENCES, WORDS)
    classes = np.stack([generator.choice(row, shape[1:]) for row in own])
    tokens = np.where(
        generator.random(shape) < 0.5,
        2 + 5 * classes + generator.integers(0, 5, shape),
        generator.integers(22, 30, shape),
    )
    arrays = {
        "tokens": tokens[np.arange(WORDS) < word_counts[..., None]].astype(np.int32),
        "word_counts": word_counts,
        "sentence_counts": sentence_counts,
        "labels": labels,
    }
    more = {"kind": "text", "task": task, "vocabulary_size": VOCABULARY, "lengths": {"words": {"kept": WORDS}}}
    return write_prepared(directory, arrays, more, ENDS)


@pytest.fixture(scope="session")
def image_directory(tmp_path_factory) -> Path:
    """96 images of 8 x 8: a bright quarter, a bright edge, or noise."""
    generator = np.random.default_rng(0)
    labels = (np.arange(DOCUMENTS) % CLASSES).astype(np.int32)
    images = generator.integers(0, 120, (DOCUMENTS, 8, 8, 1)).astype(np.uint8)
    images[labels == 0, :4, :4] += 120
    images[labels == 1, :, 6:] += 120
    more = {"kind": "image", "task": "single-label", "mean": [0.3], "deviation": [0.2]}
    return write_prepared(tmp_path_factory.mktemp("images"), {"images": images, "labels": labels}, more, ENDS)


@pytest.fixture
def write_job(tmp_path) -> Callable[..., Path]:
    """Write a job file for a run in tmp_path; ``training`` and other entries replace the defaults."""

    def write(prepared: Path, key: str = "key", model: str = "han", **entries) -> Path:
        small = SMALL.get(model, {"embedding_dim": 8, "hidden_size": 4})
        training = {"max_epochs": 4, "batch_size": 8, "learning_rate": 0.01} | entries.pop("training", {})
        job = {
            "run_key": key,
            "variant": model,
            "model": model,
            "data": "small",
            "seed": 3,
            "network": small,
            "training": training,
            "prepared": str(prepared),
            "run_directory": str(tmp_path / "runs" / key),
        }
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps(job | entries))
        return path

    return write


@pytest.fixture
def torch_settings():
    """Undo what training in this process sets in torch."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)


@pytest.fixture
def train_here(torch_settings):
    """Train a job in this process and return the folder of its run."""

    def train(path):
        job = TrainingJob.read(path)
        run(job, json.loads(path.read_text()), Progress(job, None))
        return job.run_directory

    return train


@pytest.fixture
def train_by_command(torch_settings, capfd, monkeypatch):
    """Call `python -m reread.training` in this process: its exit code, what it printed, and its stderr."""
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def call(job, *options):
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(job), *options])
        return ended.value.code or 0, *capfd.readouterr()

    return call
