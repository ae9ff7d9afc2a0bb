"""A step captured in a CUDA graph gives the bits of one that is called; a network that no graph holds is called."""

import json
import warnings

import pytest
import torch
from torch import nn

from cuda_ext.graphs import GraphWarning
from cuda_ext.library import ReferenceWarning
from models.objectives import make_objective
from reread.storage.files import sha256_file
from reread.storage.run_folder import CHECKPOINT, WEIGHTS
from reread.training.checkpoint import checkpoints
from reread.training.optimisers import make_optimiser
from reread.training.progress import Progress
from reread.training.run import run
from reread.training.settings import Settings, TrainingJob
from reread.training.step import Step

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]


@pytest.fixture(autouse=True)
def restored():
    """The settings of a run for its whole process."""
    yield
    torch.use_deterministic_algorithms(False)


def train(path):
    job = TrainingJob.read(path)
    with warnings.catch_warnings():
        # Without the library, which this does not need, the references run.
        warnings.simplefilter("ignore", ReferenceWarning)
        run(job, json.loads(path.read_text()), Progress(job, events=False))
    files = (job.run_directory / WEIGHTS, checkpoints(job.run_directory)[-1] / CHECKPOINT)
    return {path.name: sha256_file(path) for path in files}


STEPS = [
    ("densenet", {}, {}),
    ("han", {}, {}),
    ("han", {"pooling": "mean", "word_dropout": 0.2}, {}),
    ("han", {"pooling": "max"}, {"ema_decay": 0.9}),
    ("han", {"cell": "rnn"}, {}),
    ("han", {"cell": "minimal", "pooling": "max"}, {}),
    ("han", {"cell": "gru-relu"}, {}),
    ("han", {"word_dropout": 0.2}, {"adversarial_epsilon": 0.5}),
    ("han", {}, {"adversarial_epsilon": 0.5, "ema_decay": 0.9}),
    ("gru_flat", {}, {}),
    ("gru_flat", {"pooling": "mean"}, {"adversarial_epsilon": 0.5}),
    ("gru_flat", {"pooling": "attention", "word_dropout": 0.2}, {"ema_decay": 0.9}),
    ("word_average", {"word_dropout": 0.2}, {"adversarial_epsilon": 0.5, "ema_decay": 0.9}),
]


@pytest.mark.parametrize(("model", "network", "training"), STEPS)
@pytest.mark.parametrize("amp", ["off", "bf16", "fp16"])
def test_a_graph_s_run_ends_with_the_bytes_of_a_called_one(
    write_job, text_directory, image_directory, model, network, training, amp, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    data = image_directory if model == "densenet" else text_directory
    ends = []
    for graphs in (True, False):
        # Batches of two sizes, dropout, and clipping that bites.
        settings = {"batch_size": 9, "amp": amp, "cuda_graphs": graphs, "max_grad_norm": 0.5} | training
        small = {"depth": 10, "growth_rate": 4} if model == "densenet" else {"embedding_dim": 8}
        small |= {"dropout": 0.3} | network
        ends.append(train(write_job(data, f"{graphs}", model, run_key="same", network=small, training=settings)))
    assert ends[0] == ends[1]


@pytest.fixture
def batch():
    generator = torch.Generator("cuda").manual_seed(0)
    images = torch.randn(8, 3, 4, 4, generator=generator, device="cuda")
    return (images,), torch.arange(8, device="cuda") % 3


def step_of(network):
    settings = Settings(optimizer={"name": "sgd"}, learning_rate=0.1)
    objective = make_objective(settings.objective, {"task": "single-label"})
    return Step(network, objective, make_optimiser(network, settings), settings, torch.device("cuda", 0))


def test_capturing_changes_neither_buffers_nor_random_numbers(batch):
    """The first step is called, the second captured and replayed, the third replayed."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3))
    network.cuda()
    step = step_of(network)
    drawn = []
    for number in (1, 2, 3):
        torch.manual_seed(1)
        step(*batch, 0.1)
        assert network[1].num_batches_tracked.item() == number
        drawn.append(torch.rand(3, device="cuda"))
    assert torch.equal(drawn[0], drawn[1]) and torch.equal(drawn[0], drawn[2])


def test_the_learning_rate_of_a_replay_is_the_one_that_it_is_given(batch):
    network = nn.Sequential(nn.Flatten(), nn.Linear(48, 3)).cuda()
    step = step_of(network)
    for _ in range(2):
        step(*batch, 0.1)
    before = network[1].weight.detach().clone()
    step(*batch, 0.0)
    assert torch.equal(network[1].weight, before)
    first, second = step(*batch, 0.1), step(*batch, 0.1)
    assert first.loss.item() > second.loss.item()


class ReadsAValue(nn.Module):
    """Which way it takes depends on its input's values, which no graph can hold."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(48, 3)

    def forward(self, images):
        dropped = self.dropout(images.flatten(1))
        return self.linear(dropped) if images.sum().item() > -1e9 else None


def test_a_network_that_no_graph_can_hold_is_called(batch):
    network = ReadsAValue().cuda()
    step = step_of(network)
    first = step(*batch, 0.1)
    with pytest.warns(GraphWarning, match="no CUDA graph holds this network's step"):
        step(*batch, 0.1)
    for _ in range(10):
        last = step(*batch, 0.1)
    assert last.loss.item() < first.loss.item()
    # Random numbers can be drawn, repeatedly the same, as if nothing had been captured.
    torch.manual_seed(0)
    drawn = torch.rand(3, device="cuda")
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(3, device="cuda"))
