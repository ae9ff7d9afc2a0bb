"""On a GPU the text networks run kernels on words without padding: same losses and gradients as the plain networks."""

import pytest
import torch
from torch.nn import functional

import models
from cuda_ext import library
from reread.batches import collation, inference

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
NETWORKS = [
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0}),
    ("han", {"embedding_dim": 8, "hidden_size": 4, "dropout": 0.0}),
    ("gru_flat", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "pooling": "last"}),
    ("gru_flat", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "pooling": "mean"}),
    ("gru_flat", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "pooling": "attention"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "pooling": "mean"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "pooling": "max"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "cell": "rnn"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "cell": "minimal", "pooling": "mean"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "cell": "no-reset"}),
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "cell": "no-update"}),
    # Where float32 rounds a unit's sum to the other side of 0, its gradient jumps; here none is within 4e-6 of it.
    ("han", {"embedding_dim": 20, "hidden_size": 50, "dropout": 0.0, "cell": "gru-relu"}),
    ("word_average", {"embedding_dim": 20, "dropout": 0.0}),
]


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setattr(library, "_strict", True)


def loss_and_gradients(network, prepared, rows, device, ragged, half=None):
    network.zero_grad()
    target = collation.labels(prepared, rows, device)
    with torch.autocast(torch.device(device).type, half, enabled=half is not None):
        logits = network(*collation.inputs(prepared, rows, device, ragged))
    loss = functional.cross_entropy(logits.to(next(network.parameters()).dtype), target)
    loss.backward()
    # Copies: moving the network to the GPU takes its gradients along.
    return [loss.detach().cpu().double(), *(p.grad.cpu().double().clone() for p in network.parameters())]


def error(results, exact):
    """Of all gradients together, as one long vector; the loss first."""
    difference = torch.cat([(a - b).flatten() for a, b in zip(results[1:], exact[1:], strict=True)]).norm()
    whole = torch.cat([b.flatten() for b in exact[1:]]).norm()
    return float((results[0] - exact[0]).abs() / exact[0]), float(difference / whole)


@pytest.mark.parametrize(("model", "settings"), NETWORKS)
@pytest.mark.parametrize("ragged", [True, False])
def test_losses_and_gradients_are_the_plain_network_s(text, model, settings, ragged):
    rows = text.rows("train")
    torch.manual_seed(0)
    network = models.build(model, settings, text.description)
    exact = loss_and_gradients(network.double(), text, rows, "cpu", ragged=False)
    network.float().cuda()
    assert collation.reads_ragged(network, torch.device("cuda"))
    in_float32 = error(loss_and_gradients(network, text, rows, "cuda", ragged), exact)
    assert max(in_float32) < 1e-5
    in_half = error(loss_and_gradients(network, text, rows, "cuda", ragged, torch.bfloat16), exact)
    # Rounded, a unit's largest step may be another one: then its whole gradient goes elsewhere.
    assert in_half[0] < 5e-3 and in_half[1] < (0.5 if settings.get("pooling") == "max" else 5e-2)


@pytest.mark.parametrize(("model", "settings"), NETWORKS[1:])
def test_predictions_are_those_of_the_cpu(text, model, settings):
    torch.manual_seed(0)
    network = models.build(model, settings, text.description)
    rows = text.rows("train")
    on_the_cpu = torch.from_numpy(inference.predict(network, text, rows))
    on_the_gpu = torch.from_numpy(inference.predict(network.cuda(), text, rows))
    torch.testing.assert_close(on_the_gpu, on_the_cpu, rtol=1e-4, atol=1e-5)


def test_a_network_too_wide_for_the_kernels_reads_padded_text(text):
    for model, settings in (("han", {}), ("han", {"cell": "gru-relu"}), ("gru_flat", {"pooling": "attention"})):
        network = models.build(model, {"embedding_dim": 8, "hidden_size": 96} | settings, text.description).cuda()
        assert not collation.reads_ragged(network, torch.device("cuda"))
        assert inference.predict(network, text, text.rows("train")).shape == (len(text.rows("train")), 3)
