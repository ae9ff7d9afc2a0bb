"""Word vectors that begin as the data set's own, and words that become unknown ones in training."""

import numpy as np
import pytest
import torch

import models
from models.layers.embedding import WordDropout, WordEmbedding
from models.layers.initialisation import init_from_data
from reread.batches import collation
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared

TEXT_NETWORKS = [
    ("han", {"embedding_dim": 6}),
    ("gru_flat", {"embedding_dim": 6}),
    ("word_average", {"embedding_dim": 6}),
]


def test_a_share_of_the_words_becomes_unknown_in_training_and_padding_and_evaluation_stay():
    torch.manual_seed(0)
    layer = WordDropout(0.3)
    tokens = torch.randint(2, 50, (200, 100), dtype=torch.int32)
    tokens[:, 80:] = 0
    dropped = layer(tokens)
    changed = dropped != tokens
    assert (dropped[changed] == 1).all() and dropped.dtype == torch.int32
    assert not changed[:, 80:].any()
    # Of 16,000 draws a share of 0.3 has a standard error of 0.0036.
    assert changed[:, :80].double().mean().item() == pytest.approx(0.3, abs=0.015)
    assert not torch.equal(layer(tokens), dropped)
    assert torch.equal(layer.eval()(tokens), tokens)
    assert torch.equal(WordDropout(0.0).train()(tokens), tokens)


@pytest.mark.parametrize(("model", "settings"), TEXT_NETWORKS)
@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
def test_every_text_network_drops_words_in_training_alone_padded_and_ragged(text, model, settings):
    torch.manual_seed(0)
    network = models.build(model, settings | {"dropout": 0.0, "word_dropout": 0.5}, text.description)
    rows = text.rows("train")
    for ragged in (False, True):
        given = collation.inputs(text, rows, ragged=ragged)
        assert not torch.equal(network.train()(*given), network(*given))
        torch.testing.assert_close(network.eval()(*given), network(*given), rtol=0, atol=0)


def with_vectors(text: Prepared, width: int) -> Prepared:
    vectors = np.random.default_rng(0).normal(size=(40, width)).astype(np.float32)
    vectors.flags.writeable = False  # as prepared arrays are
    return Prepared(text.directory, text.description, dict(text.arrays) | {"word_vectors": vectors})


@pytest.mark.parametrize(("model", "settings"), TEXT_NETWORKS)
def test_a_network_that_asks_for_them_begins_with_the_data_set_s_word_vectors(text, model, settings):
    prepared = with_vectors(text, 6)
    network = models.build(model, settings | {"word_vectors": "word2vec"}, text.description)
    init_from_data(network, prepared)
    weight = network.embedding.weight
    assert not weight[0].any() and weight.requires_grad
    assert np.array_equal(weight[1:].detach().numpy(), prepared.arrays["word_vectors"][1:])
    random = models.build(model, settings, text.description)
    before = random.embedding.weight.detach().clone()
    init_from_data(random, prepared)
    assert torch.equal(random.embedding.weight, before)


def test_vectors_that_are_not_there_or_of_another_width_are_refused_in_one_line(text):
    embedding = WordEmbedding(40, 6, vectors="word2vec")
    with pytest.raises(InputError) as error:
        init_from_data(embedding, text)
    message = "word_vectors is word2vec, and small is prepared without: set preprocessing.small.word_vectors"
    assert str(error.value) == message
    with pytest.raises(InputError) as error:
        init_from_data(embedding, with_vectors(text, 5))
    assert "embedding_dim is 6, and the word vectors of small have 5 numbers: set embedding_dim" in str(error.value)
    assert "\n" not in str(error.value)
