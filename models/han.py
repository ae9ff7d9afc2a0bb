"""Hierarchical attention network: words make sentences, sentences make the document.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, section 2.2:
word GRU, word attention, sentence GRU, sentence attention, softmax layer. With the mean or the maximum in place of
attention it is that paper's HN-AVE or HN-MAX, and each GRU may be another of models/layers/cells.py.

Shape legend: N documents, S sentences per document, W words per sentence, E embedding, H units per direction,
M words of all documents, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.attention_pooling import WIDEST_FOR_MATRIX_UNITS
from cuda_ext.gru import MOST_UNITS
from models.layers import cells
from models.layers import pooling as pool
from models.layers.classifier import Classifier
from models.layers.embedding import Vectors, WordEmbedding
from models.layers.parameter_groups import parameter_groups
from models.layers.recurrent import BidirectionalGRU
from models.layers.sequences import offsets_of
from reread.storage.settings import Range

KIND = "text"
# Per batch of sentences: on docstrings 2 groups train a quarter faster than 1, and 3 no faster than 2.
LENGTH_GROUPS = 2


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    embedding_dim: numbers per word; hidden_size: units per direction of both GRUs; dropout: of embeddings, vectors;
    word_dropout: of whole words; embedding_lr_scale: the word vectors' share of the learning rate, at 0 they stay as
    they began; word_vectors: their initial values; pooling: of words and of sentences; cell: of both levels.
    """

    embedding_dim: Annotated[int, Range(1, 4096)] = 32
    hidden_size: Annotated[int, Range(1, 4096)] = 32
    dropout: Annotated[float, Range(0, 0.95)] = 0.5
    word_dropout: Annotated[float, Range(0, 0.95)] = 0.0
    embedding_lr_scale: Annotated[float, Range(0, 1)] = 1.0
    word_vectors: Vectors = "random"
    pooling: pool.Name = "attention"
    cell: cells.Name = "gru"


DEBUG = Settings(embedding_dim=8, hidden_size=4)


def scattered(x: Tensor, places: Tensor, count: int) -> Tensor:
    """x [M, D] -> [count, D] with row m of x at ``places[m]`` and zeros elsewhere."""
    return x.new_zeros(count, x.shape[1]).index_copy(0, places, x)


def recurrence(cell: cells.Name, inputs: int, units: int) -> BidirectionalGRU:
    return BidirectionalGRU(inputs, units) if cell == "gru" else cells.BidirectionalRecurrence(inputs, units, cell)


class HierarchicalAttentionNetwork(nn.Module):
    def __init__(self, settings: Settings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        width = 2 * settings.hidden_size
        self.embedding = WordEmbedding(
            vocabulary_size, settings.embedding_dim, settings.word_dropout, settings.word_vectors
        )
        self.embedding_lr_scale = settings.embedding_lr_scale
        self.dropout = nn.Dropout(settings.dropout)
        self.word_gru = recurrence(settings.cell, settings.embedding_dim, settings.hidden_size)
        self.word_pooling = pool.pooling(settings.pooling, width)
        self.sentence_gru = recurrence(settings.cell, width, settings.hidden_size)
        self.sentence_pooling = pool.pooling(settings.pooling, width)
        self.classifier = Classifier(width, classes)
        narrow = settings.pooling != "attention" or width <= WIDEST_FOR_MATRIX_UNITS
        self.reads_ragged = settings.hidden_size <= MOST_UNITS and narrow

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self, self.embedding, self.embedding_lr_scale)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] -> logits float [N, K].

        Ragged: tokens int [M], all words one after the other, and whatever follows them.
        """
        if tokens.ndim == 1:
            vectors = self.read_ragged_sentences(tokens, word_counts.flatten()).unflatten(0, word_counts.shape)
            return self.read_document(vectors, sentence_counts)[0]
        return self.attend(tokens, word_counts, sentence_counts)[0]

    def attend(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [N, K] with the attention: of words [N, S, W] and of sentences [N, S], 0 at padding."""
        documents, sentences, _ = tokens.shape
        tokens, word_counts = tokens.flatten(0, 1), word_counts.flatten()
        if torch.compiler.is_exporting():
            vectors, word_weights = self.read_sentences(tokens, word_counts)
        else:
            vectors, word_weights = self.read_real_sentences(tokens, word_counts)
        vectors = vectors.unflatten(0, (documents, sentences))
        logits, sentence_weights = self.read_document(vectors, sentence_counts)
        return logits, word_weights.unflatten(0, (documents, sentences)), sentence_weights

    def read_real_sentences(self, tokens: Tensor, word_counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return what ``read_sentences`` returns, faster: skip empty sentences and read short ones apart.

        Which they are depends on the data, so an exported graph cannot do this.
        """
        real = word_counts.nonzero().squeeze(-1)
        real = real[word_counts[real].argsort(stable=True)]
        vectors, weights = [], []
        for group in real.chunk(LENGTH_GROUPS):
            longest = max(word_counts[group].tolist(), default=1)
            group_vectors, group_weights = self.read_sentences(tokens[group, :longest], word_counts[group])
            vectors.append(group_vectors)
            weights.append(functional.pad(group_weights, (0, tokens.shape[1] - longest)))
        return scattered(torch.cat(vectors), real, len(tokens)), scattered(torch.cat(weights), real, len(tokens))

    def read_sentences(self, tokens: Tensor, word_counts: Tensor) -> tuple[Tensor, Tensor]:
        """tokens int [M, W], word_counts int [M] -> sentence vectors [M, 2H] and word attention [M, W]."""
        words = self.dropout(self.embedding(tokens))
        return self.word_pooling(self.word_gru(words, word_counts), word_counts)

    def read_ragged_sentences(self, tokens: Tensor, word_counts: Tensor) -> Tensor:
        """tokens int [M], sentence after sentence, word_counts int [N S] -> sentence vectors [N S, 2H]."""
        offsets = offsets_of(word_counts)
        states, _ = self.word_gru.read_ragged(self.dropout(self.embedding(tokens)), offsets)
        return self.word_pooling.read_ragged(states, offsets)

    def read_document(self, vectors: Tensor, sentence_counts: Tensor) -> tuple[Tensor, Tensor]:
        """sentence vectors [N, S, 2H], sentence_counts int [N] -> logits [N, K] and sentence attention [N, S]."""
        states = self.sentence_gru(self.dropout(vectors), sentence_counts)
        document, weights = self.sentence_pooling(states, sentence_counts)
        return self.classifier(self.dropout(document)), weights


def build(settings: Settings, description: dict[str, Any]) -> HierarchicalAttentionNetwork:
    """Build the network for a prepared text data set (``description`` is its prepared.json)."""
    return HierarchicalAttentionNetwork(settings, description["vocabulary_size"], len(description["classes"]))
