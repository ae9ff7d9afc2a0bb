"""HAN, the flat GRU and the mean of words: the equations in plain loops, invariance to padding, ragged as padded."""

import pytest
import torch
from torch.nn import functional

import models
from models.layers import cells
from reread.batches import collation

NETWORKS = {
    "han": ("han", {}),
    "han-mean": ("han", {"pooling": "mean"}),
    "han-max": ("han", {"pooling": "max"}),
    **{f"han-{cell}": ("han", {"cell": cell}) for cell in cells.NAMES if cell != "gru"},
    "gru_flat": ("gru_flat", {}),
    "gru_flat-mean": ("gru_flat", {"pooling": "mean"}),
    "gru_flat-attention": ("gru_flat", {"pooling": "attention"}),
    "word_average": ("word_average", {}),
}


@pytest.fixture(params=NETWORKS.values(), ids=NETWORKS.keys())
def network(request, text):
    torch.manual_seed(0)
    name, settings = request.param
    small = {"embedding_dim": 6} if name == "word_average" else {"embedding_dim": 6, "hidden_size": 5}
    return models.build(name, small | settings, text.description).eval()


def gru(cell, inputs):
    """States of torch.nn.GRU's equations, one step after the other."""
    weight_input, weight_hidden, bias_input, bias_hidden = cell.parameters()
    state, states = torch.zeros(cell.hidden_size, dtype=torch.float64), []
    for x in inputs:
        reset_i, update_i, new_i = (weight_input @ x + bias_input).chunk(3)
        reset_h, update_h, new_h = (weight_hidden @ state + bias_hidden).chunk(3)
        reset, update = torch.sigmoid(reset_i + reset_h), torch.sigmoid(update_i + update_h)
        candidate = torch.tanh(new_i + reset * new_h)
        state = (1 - update) * candidate + update * state
        states.append(state)
    return states


def both_directions(layer, inputs):
    forwards, backwards = gru(layer.forwards, inputs), gru(layer.backwards, inputs[::-1])[::-1]
    return [torch.cat(pair) for pair in zip(forwards, backwards, strict=True)]


def attention(layer, states):
    scores = torch.stack([torch.tanh(layer.projection(h)) @ layer.context_vector for h in states])
    weights = scores.exp() / scores.exp().sum()
    return sum(weight * h for weight, h in zip(weights, states, strict=True)), weights


@torch.no_grad()
def test_han_is_the_network_of_yang_et_al(text):
    torch.manual_seed(1)
    han = models.build("han", {"embedding_dim": 6, "hidden_size": 5}, text.description).eval().double()
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    logits, word_weights, sentence_weights = han.attend(tokens, word_counts, sentence_counts)
    for n in range(len(tokens)):
        vectors = []
        for s in range(sentence_counts[n]):
            words = [han.embedding.weight[token] for token in tokens[n, s, : word_counts[n, s]]]
            vector, weights = attention(han.word_pooling, both_directions(han.word_gru, words))
            torch.testing.assert_close(word_weights[n, s, : len(words)], weights)
            vectors.append(vector)
        document, weights = attention(han.sentence_pooling, both_directions(han.sentence_gru, vectors))
        torch.testing.assert_close(sentence_weights[n, : len(vectors)], weights)
        torch.testing.assert_close(logits[n], han.classifier(document))


SHOWN = [
    ("han", {}),
    ("han", {"pooling": "mean"}),
    ("han", {"pooling": "max", "cell": "rnn"}),
    ("gru_flat", {"pooling": "attention"}),
]


@pytest.mark.parametrize(("model", "settings"), SHOWN)
def test_weights_sum_to_one_over_what_is_real(text, model, settings):
    network = models.build(model, settings, text.description).eval()
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    with torch.no_grad():
        logits, words, sentences = network.attend(tokens, word_counts, sentence_counts)
    assert words.shape == tokens.shape and sentences.shape == word_counts.shape
    torch.testing.assert_close(words.sum(-1), (word_counts > 0).float())
    torch.testing.assert_close(sentences.sum(-1), torch.ones(len(tokens)))
    assert not words[tokens == 0].any() and not sentences[word_counts == 0].any()
    assert torch.equal(logits, network(tokens, word_counts, sentence_counts))


def test_a_network_without_weights_says_so_by_having_none_to_show(text):
    for model, settings in (("gru_flat", {}), ("gru_flat", {"pooling": "mean"}), ("word_average", {})):
        assert not hasattr(models.build(model, settings, text.description), "attend")


@torch.no_grad()
def test_the_flat_gru_s_attention_is_over_all_words_of_the_document(text):
    torch.manual_seed(1)
    flat = models.build("gru_flat", {"embedding_dim": 6, "hidden_size": 5, "pooling": "attention"}, text.description)
    flat = flat.eval().double()
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    logits, words, sentences = flat.attend(tokens, word_counts, sentence_counts)
    for n in range(len(tokens)):
        vectors = [flat.embedding.weight[token] for token in tokens[n].flatten() if token]
        document, weights = attention(flat.pooling, both_directions(flat.gru, vectors))
        torch.testing.assert_close((words[n] * sentences[n].unsqueeze(-1))[tokens[n] != 0], weights)
        torch.testing.assert_close(logits[n], flat.classifier(document))


@torch.no_grad()
def test_the_flat_gru_reads_the_words_of_all_sentences_in_order(text):
    torch.manual_seed(1)
    flat = models.build("gru_flat", {"embedding_dim": 6, "hidden_size": 5}, text.description).eval().double()
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    logits = flat(tokens, word_counts, sentence_counts)
    for n in range(len(tokens)):
        words = [flat.embedding.weight[token] for token in tokens[n].flatten() if token]
        final = torch.cat([gru(flat.gru.forwards, words)[-1], gru(flat.gru.backwards, words[::-1])[-1]])
        torch.testing.assert_close(logits[n], flat.classifier(final))


@torch.no_grad()
def test_the_mean_of_words_is_the_mean_of_all_words_of_a_document(text):
    network = models.build("word_average", {"embedding_dim": 6}, text.description).eval()
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    logits = network(tokens, word_counts, sentence_counts)
    for n in range(len(tokens)):
        mean = torch.stack([network.embedding.weight[token] for token in tokens[n].flatten() if token]).mean(0)
        torch.testing.assert_close(logits[n], network.classifier(mean))


def test_pads_and_empty_sentences_change_no_output_and_get_no_gradient(network, text):
    tokens, word_counts, sentence_counts = collation.inputs(text, text.rows("train"))
    padding = (0, 4, 0, 3)
    more_tokens = functional.pad(tokens, padding)
    more_counts = functional.pad(word_counts, (0, 3))
    # A word stands in all padding: neither its embedding nor its gradient may matter.
    filler = 39
    tokens[tokens == filler] = more_tokens[more_tokens == filler] = 38
    more_tokens[torch.arange(more_tokens.shape[2]) >= more_counts.unsqueeze(-1)] = filler
    logits = network(tokens, word_counts, sentence_counts)
    torch.testing.assert_close(network(more_tokens, more_counts, sentence_counts), logits, rtol=0, atol=1e-6)
    network(more_tokens, more_counts, sentence_counts).square().sum().backward()
    assert not network.embedding.weight.grad[filler].any()
    assert not network.embedding.weight.grad[0].any()
    assert network.embedding.weight.grad[tokens[0, 0, 0]].any()


def test_a_document_alone_gives_what_it_gives_in_a_batch(network, text):
    rows = text.rows("train")
    with torch.no_grad():
        together = network(*collation.inputs(text, rows))
        alone = torch.cat([network(*collation.inputs(text, rows[n : n + 1])) for n in range(len(rows))])
    torch.testing.assert_close(alone, together, rtol=0, atol=1e-6)


def test_a_document_without_words_gives_finite_logits(network):
    tokens, word_counts = torch.zeros(2, 3, 4, dtype=torch.int32), torch.zeros(2, 3, dtype=torch.int32)
    for sentences in (0, 1):
        assert torch.isfinite(network(tokens, word_counts, torch.full((2,), sentences))).all()


@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
def test_ragged_text_gives_what_padded_text_gives_and_its_gradients(network, text):
    """Two documents have no word and an empty sentence in the middle; padding follows the last word."""
    network.double()
    rows = text.rows("train")
    tokens, word_counts, sentence_counts = collation.inputs(text, rows)
    word_counts[2] = word_counts[5, 0] = word_counts[7, -1] = 0
    real = torch.arange(tokens.shape[2]) < word_counts.unsqueeze(-1)
    words = functional.pad(tokens[real], (0, 9))
    target = collation.labels(text, rows)
    results = []
    for given in (tokens.masked_fill(~real, 0), words):
        network.zero_grad()
        logits = network(given, word_counts, sentence_counts)
        functional.cross_entropy(logits, target).backward()
        results.append([logits, *(parameter.grad for parameter in network.parameters())])
    torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-11)
    assert all(gradient.any() for gradient in results[0][1:])
