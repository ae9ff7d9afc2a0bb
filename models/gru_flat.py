"""A flat bidirectional GRU: the document is one sequence of words, with no sentences and no attention.

The baseline of models/han.py, with the same inputs: the words of all sentences follow each other in order, and
the final states of both directions are the document.

Shape legend: N documents, S sentences a document, W words a sentence, T words a document, M words of all
documents, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.gru import MOST_UNITS
from models.layers.embedding import WordEmbedding
from models.layers.recurrent import BidirectionalGRU, real_steps
from storage.checked import Between, Checked

KIND = "text"


@dataclass(frozen=True)
class Settings(Checked):
    """embedding: numbers a word; hidden: units a direction; dropout: of embeddings and of the document;
    summary: what stands for the document, the final states of both directions or the mean of all states."""

    embedding: Annotated[int, Between(1, 4096)] = 32
    hidden: Annotated[int, Between(1, 4096)] = 32
    dropout: Annotated[float, Between(0, 0.95)] = 0.5
    summary: Literal["last", "mean"] = "last"


DEBUG = Settings(embedding=8, hidden=4)


def in_one_sequence(tokens: Tensor, word_counts: Tensor) -> tuple[Tensor, Tensor]:
    """tokens int [N, S, W], word_counts int [N, S] -> real words in order, then padding, int [N, T], and counts [N]."""
    padding = ~real_steps(word_counts, tokens.shape[2]).flatten(1)
    order = padding.byte().argsort(dim=1, stable=True)
    counts = word_counts.sum(dim=1)
    if not torch.compiler.is_exporting():
        # The longest document depends on the data, which an exported graph cannot have: it reads all S W places.
        order = order[:, : max(1, int(counts.max()))]
    return tokens.flatten(1).gather(1, order), counts


class FlatGRU(nn.Module):
    def __init__(self, settings: Settings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        self.summary = settings.summary
        self.embedding = WordEmbedding(vocabulary_size, settings.embedding)
        self.dropout = nn.Dropout(settings.dropout)
        self.gru = BidirectionalGRU(settings.embedding, settings.hidden)
        self.classifier = nn.Linear(2 * settings.hidden, classes)
        self.reads_ragged = settings.hidden <= MOST_UNITS

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] (not used) -> logits float [N, K].

        Ragged: tokens int [M], all words one after the other, and whatever follows them.
        """
        document = self.read_ragged if tokens.ndim == 1 else self.read
        return self.classifier(self.dropout(document(tokens, word_counts)))

    def read(self, tokens: Tensor, word_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S] -> one vector a document, float [N, 2H]."""
        words, counts = in_one_sequence(tokens, word_counts)
        states = self.gru(self.dropout(self.embedding(words)), counts)
        if self.summary == "mean":
            return states.sum(dim=1) / counts.clamp(min=1).unsqueeze(-1)
        forwards, backwards = states.chunk(2, dim=-1)
        last = (counts - 1).clamp(min=0).long().reshape(-1, 1, 1).expand(-1, 1, forwards.shape[-1])
        return torch.cat([forwards.gather(1, last).squeeze(1), backwards[:, 0]], dim=-1)

    def read_ragged(self, tokens: Tensor, word_counts: Tensor) -> Tensor:
        """tokens int [M], word_counts int [N, S] -> one vector a document, float [N, 2H]."""
        counts = word_counts.sum(dim=1)
        offsets = functional.pad(counts.cumsum(0), (1, 0))
        states, last = self.gru.read_ragged(self.dropout(self.embedding(tokens)), offsets)
        if self.summary == "last":
            return last
        # Unsafe: checking the offsets would wait for the GPU.
        sums = torch.segment_reduce(states.float(), "sum", offsets=offsets, unsafe=True)
        return sums / counts.clamp(min=1).unsqueeze(-1)


def build(settings: Settings, description: dict[str, Any]) -> FlatGRU:
    """The network for a prepared text data set (``description`` is its prepared.json)."""
    return FlatGRU(settings, description["vocabulary_size"], len(description["classes"]))
