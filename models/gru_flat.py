"""A flat bidirectional GRU: the document is one sequence of words, with no sentences.

The baseline of models/han.py, with the same inputs: the words of all sentences follow each other in order. The
document's vector is the final states of both directions, or the mean or the attention's sum of all states.

Shape legend: N documents, S sentences per document, W words per sentence, T words per document, M words of all
documents, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn

from cuda_ext.attention_pooling import WIDEST_FOR_MATRIX_UNITS
from cuda_ext.gru import MOST_UNITS
from models.layers.attention import Attention
from models.layers.classifier import Classifier
from models.layers.embedding import Vectors, WordEmbedding
from models.layers.parameter_groups import parameter_groups
from models.layers.pooling import pooling
from models.layers.recurrent import BidirectionalGRU
from models.layers.sequences import offsets_of, real_steps
from reread.storage.settings import Range

KIND = "text"


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    embedding_dim: numbers per word; hidden_size: units per direction; dropout: of embeddings and of the document;
    word_dropout: of whole words; embedding_lr_scale: the word vectors' share of the learning rate; word_vectors: their
    initial values; pooling: the document's vector, which is the final states of both directions, the mean of all
    states, or their sum weighted by attention as in models/han.py.
    """

    embedding_dim: Annotated[int, Range(1, 4096)] = 32
    hidden_size: Annotated[int, Range(1, 4096)] = 32
    dropout: Annotated[float, Range(0, 0.95)] = 0.5
    word_dropout: Annotated[float, Range(0, 0.95)] = 0.0
    embedding_lr_scale: Annotated[float, Range(0, 1)] = 1.0
    word_vectors: Vectors = "random"
    pooling: Literal["last", "mean", "attention"] = "last"


DEBUG = Settings(embedding_dim=8, hidden_size=4)


def in_one_sequence(word_counts: Tensor, words: int) -> tuple[Tensor, Tensor]:
    """word_counts int [N, S] of sentences in rows of ``words`` places -> the places of a document's real words in
    order, and then padding's, int64 [N, T], and how many words it has, int64 [N]."""
    padding = ~real_steps(word_counts, words).flatten(1)
    order = padding.byte().argsort(dim=1, stable=True)
    counts = word_counts.sum(dim=1)
    if not torch.compiler.is_exporting():
        # The longest document depends on the data, which an exported graph cannot have: it reads all S W places.
        order = order[:, : max(1, int(counts.max()))]
    return order, counts


class FlatGRU(nn.Module):
    def __init__(self, settings: Settings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        width = 2 * settings.hidden_size
        self.embedding = WordEmbedding(
            vocabulary_size, settings.embedding_dim, settings.word_dropout, settings.word_vectors
        )
        self.embedding_lr_scale = settings.embedding_lr_scale
        self.dropout = nn.Dropout(settings.dropout)
        self.gru = BidirectionalGRU(settings.embedding_dim, settings.hidden_size)
        self.pooling = None if settings.pooling == "last" else pooling(settings.pooling, width)
        self.classifier = Classifier(width, classes)
        narrow = settings.pooling != "attention" or width <= WIDEST_FOR_MATRIX_UNITS
        self.reads_ragged = settings.hidden_size <= MOST_UNITS and narrow

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self, self.embedding, self.embedding_lr_scale)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] (not used) -> logits float [N, K].

        Ragged: tokens int [M], all words one after the other, and whatever follows them.
        """
        document = self.read_ragged if tokens.ndim == 1 else self.read
        return self.classifier(self.dropout(document(tokens, word_counts)))

    def read(self, tokens: Tensor, word_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S] -> one vector per document, float [N, 2H]."""
        order, counts = in_one_sequence(word_counts, tokens.shape[2])
        states = self.read_states(tokens, order, counts)
        if self.pooling is not None:
            return self.pooling(states, counts)[0]
        forwards, backwards = states.chunk(2, dim=-1)
        last = (counts - 1).clamp(min=0).long().reshape(-1, 1, 1).expand(-1, 1, forwards.shape[-1])
        return torch.cat([forwards.gather(1, last).squeeze(1), backwards[:, 0]], dim=-1)

    def read_states(self, tokens: Tensor, order: Tensor, counts: Tensor) -> Tensor:
        """tokens int [N, S, W], order int64 [N, T] of its words and their counts int64 [N] -> states [N, T, 2H]."""
        words = tokens.flatten(1).gather(1, order)
        return self.gru(self.dropout(self.embedding(words)), counts)

    def read_ragged(self, tokens: Tensor, word_counts: Tensor) -> Tensor:
        """tokens int [M], word_counts int [N, S] -> one vector per document, float [N, 2H]."""
        offsets = offsets_of(word_counts.sum(dim=1, dtype=word_counts.dtype))
        states, last = self.gru.read_ragged(self.dropout(self.embedding(tokens)), offsets)
        return last.transpose(0, 1).flatten(1) if self.pooling is None else self.pooling.read_ragged(states, offsets)


class FlatGRUWithAttention(FlatGRU):
    pooling: Attention

    def attend(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [N, K] with the attention: of words [N, S, W] and of sentences [N, S], 0 at padding.

        The network weighs only the words of the document: the weight of a sentence is the sum over its words, and each
        word has its share of that.
        """
        order, counts = in_one_sequence(word_counts, tokens.shape[2])
        document, of_sequence = self.pooling(self.read_states(tokens, order, counts), counts)
        weights = of_sequence.new_zeros(tokens.flatten(1).shape).scatter(1, order, of_sequence).view_as(tokens)
        sentences = weights.sum(dim=-1)
        words = weights / sentences.clamp(min=torch.finfo(weights.dtype).tiny).unsqueeze(-1)
        return self.classifier(self.dropout(document)), words, sentences


def build(settings: Settings, description: dict[str, Any]) -> FlatGRU:
    """Build the network for a prepared text data set (``description`` is its prepared.json)."""
    network = FlatGRUWithAttention if settings.pooling == "attention" else FlatGRU
    return network(settings, description["vocabulary_size"], len(description["classes"]))
