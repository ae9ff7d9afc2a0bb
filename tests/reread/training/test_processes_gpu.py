"""Two GPUs train one network as one GPU does: losses, weights, batch norm, resuming."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.golden.data import write_prepared
from tests.reread.training.outcome import outcome
from tests.reread.training.torchrun import TORCHRUN, directory, finish, history, start, train_with_kills, twins

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two NVIDIA GPUs")]
GPUS = "0,1"
SGD = {"name": "sgd", "weight_decay": 0.01}
CASES = {
    "han": ("text", {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.0}),
    # Plain modules with batch norm, and blocks that are one kernel where batch norm has the statistics of one process.
    "fastnet": ("image", {"widths": [8, 8, 8]}),
    "densenet": ("image", {"depth": 10, "growth_rate": 4}),
}


@pytest.fixture
def data(text_directory, wide_image_directory):
    return {"text": text_directory, "image": wide_image_directory}


@pytest.fixture(scope="session")
def wide_image_directory(tmp_path_factory):
    """96 images of 16 x 16 of noise, brighter in a third that depends on the class."""
    generator = np.random.default_rng(0)
    labels = (np.arange(96) % 3).astype(np.int32)
    images = generator.integers(0, 120, (96, 16, 16, 3)).astype(np.uint8)
    for label in range(3):
        images[labels == label, 5 * label : 5 * label + 5] += 120
    more = {"kind": "image", "task": "single-label", "mean": [0.3] * 3, "deviation": [0.2] * 3}
    return write_prepared(tmp_path_factory.mktemp("images"), {"images": images, "labels": labels}, more, (64, 80, 96))


@pytest.mark.parametrize("model", CASES)
def test_two_gpus_give_the_losses_and_weights_of_one(model, data, write_job):
    kind, network = CASES[model]
    settings = {
        "max_epochs": 3, "batch_size": 16, "learning_rate": 0.05, "optimizer": SGD, "amp": "fp32",
        "deterministic": model != "fastnet",
    }  # fmt: skip
    alone, together = (
        write_job(data[kind], name, model, network=network, training=settings) for name in ("one", "two")
    )
    finish(start(alone, "-m", "reread.training", gpus="0"))
    finish(start(together, *TORCHRUN, gpus=GPUS))
    for row, other in zip(history(alone), history(together), strict=True):
        assert other == pytest.approx(row, rel=1e-3, abs=1e-4)
    weights, others = (load_file(directory(job) / "best.safetensors") for job in (alone, together))
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, rtol=1e-2, atol=1e-3)
    assert json.loads((directory(together) / "environment.json").read_text())["processes"] == 2


@pytest.mark.parametrize("model", ["han", "densenet"])
def test_a_run_resumes_after_its_processes_were_killed(model, data, write_job):
    kind, network = CASES[model]
    settings = {"max_epochs": 40, "patience": 40, "batch_size": 16}
    whole, killed = twins(write_job, data[kind], model, network=network, training=settings)
    finish(start(whole, *TORCHRUN, gpus=GPUS))
    train_with_kills(killed, GPUS)
    assert outcome(directory(killed)) == outcome(directory(whole))
