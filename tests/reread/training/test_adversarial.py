"""Perturbed word vectors: of the norm asked for over each document, along the gradient, the same padded and ragged."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import models
from models.layers.embedding import word_embedding
from models.objectives import make_objective
from reread.batches import collation
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.training.adversarial import PerturbedEmbedding, worst_perturbation
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.step import Step

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
NETWORKS = [("han", {}), ("han", {"cell": "rnn", "pooling": "max"}), ("gru_flat", {}), ("word_average", {})]


@pytest.fixture
def prepared(text_directory):
    return open_prepared(text_directory)


def build(model, settings, prepared):
    torch.manual_seed(0)
    small = {"embedding_dim": 6, "dropout": 0.0} | ({} if model == "word_average" else {"hidden_size": 5})
    return models.build(model, small | settings, prepared.description)


@pytest.mark.parametrize(("model", "settings"), NETWORKS)
@pytest.mark.parametrize("ragged", [False, True])
def test_a_network_reads_the_table_as_it_reads_its_words(prepared, model, settings, ragged):
    network = build(model, settings, prepared)
    inputs = collation.inputs(prepared, prepared.rows("train"), ragged=ragged)
    perturbed = PerturbedEmbedding(word_embedding(network, "adversarial_epsilon", 0), inputs[0])
    with perturbed.override_embedding(perturbed.vectors()):
        logits = network(perturbed.numbers, *inputs[1:])
    assert torch.equal(logits, network(*inputs))


@pytest.mark.parametrize("ragged", [False, True])
def test_the_perturbation_has_its_norm_in_each_document_and_the_gradient_s_direction(prepared, ragged):
    tokens, word_counts, _ = collation.inputs(prepared, prepared.rows("train")[:9], ragged=ragged)
    generator = torch.Generator().manual_seed(0)
    gradient = torch.randn(tokens.numel(), 4, generator=generator) * (tokens.flatten() != 0).unsqueeze(-1)
    perturbation = worst_perturbation(gradient, tokens, word_counts, 0.7)
    counts = word_counts.sum(dim=1).tolist()
    documents = perturbation[: sum(counts)].split(counts) if ragged else perturbation.unflatten(0, (len(tokens), -1))
    for document in documents:
        assert document.norm().item() == pytest.approx(0.7)
    torch.testing.assert_close(
        functional.cosine_similarity(perturbation, gradient), (perturbation != 0).any(-1).float()
    )
    assert not worst_perturbation(torch.zeros_like(gradient), tokens, word_counts, 0.7).any()


@pytest.mark.parametrize("ragged", [False, True])
def test_a_step_s_gradients_are_those_of_both_losses(prepared, ragged):
    """By hand for the mean of words, whose logits are linear in the word vectors."""
    settings = Settings(
        adversarial_epsilon=0.7, objective={"name": "classification", "label_smoothing": 0.0}, max_grad_norm=0.0
    )
    network = build("word_average", {}, prepared)
    rows = prepared.rows("train")
    target = collation.labels(prepared, rows)
    inputs = collation.inputs(prepared, rows, ragged=ragged)
    objective = make_objective(settings.objective, prepared.description)
    step = Step(network, objective, make_optimiser(network, settings), settings, torch.device("cpu"))
    outcome = step._gradients(inputs, target)
    of_step = [parameter.grad.clone() for parameter in network.parameters()]

    network.zero_grad()
    documents = [words[words != 0] for words in collation.inputs(prepared, rows)[0].flatten(1)]
    vectors = [network.embedding.weight[words] for words in documents]
    clean = functional.cross_entropy(network.classifier(torch.stack([v.mean(0) for v in vectors])), target)
    gradients = torch.autograd.grad(clean, vectors, retain_graph=True)
    moved = [v + 0.7 * g / g.norm() for v, g in zip(vectors, gradients, strict=True)]
    worse = functional.cross_entropy(network.classifier(torch.stack([v.mean(0) for v in moved])), target)
    assert worse > clean
    (clean + worse).backward()
    torch.testing.assert_close(outcome.loss, clean.detach())
    for gradient, parameter in zip(of_step, network.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_a_network_without_words_is_refused():
    settings = Settings(adversarial_epsilon=0.7)
    network = nn.Linear(3, 2)
    with pytest.raises(InputError, match="adversarial_epsilon needs word vectors"):
        Step(network, None, make_optimiser(network, settings), settings, torch.device("cpu"))
