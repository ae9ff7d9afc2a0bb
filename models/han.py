"""Hierarchical attention network: words make sentences, sentences make the document.

Source: Yang et al., Hierarchical Attention Networks for Document Classification, NAACL 2016, section 2.2:
word GRU, word attention, sentence GRU, sentence attention, softmax layer.

Shape legend: N documents, S sentences a document, W words a sentence, E embedding, H units a direction, K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from models.checked import Between, Checked
from models.layers.attention import Attention
from models.layers.recurrent import BidirectionalGRU

KIND = "text"


@dataclass(frozen=True)
class Settings(Checked):
    """embedding: numbers a word; hidden: units a direction of both GRUs; dropout: of embeddings and of vectors."""

    embedding: Annotated[int, Between(1, 4096)] = 64
    hidden: Annotated[int, Between(1, 4096)] = 32
    dropout: Annotated[float, Between(0, 0.95)] = 0.3


DEBUG = Settings(embedding=8, hidden=4)


class HierarchicalAttentionNetwork(nn.Module):
    def __init__(self, settings: Settings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        width = 2 * settings.hidden
        self.embedding = nn.Embedding(vocabulary_size, settings.embedding, padding_idx=0)
        self.dropout = nn.Dropout(settings.dropout)
        self.word_gru = BidirectionalGRU(settings.embedding, settings.hidden)
        self.word_attention = Attention(width)
        self.sentence_gru = BidirectionalGRU(width, settings.hidden)
        self.sentence_attention = Attention(width)
        self.classifier = nn.Linear(width, classes)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] -> logits float [N, K]."""
        return self.attend(tokens, word_counts, sentence_counts)[0]

    def attend(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits [N, K] with the attention: of words [N, S, W] and of sentences [N, S], 0 at padding."""
        documents, sentences, words = tokens.shape
        tokens, word_counts = tokens.flatten(0, 1), word_counts.flatten()
        if torch.compiler.is_exporting():
            vectors, word_weights = self.read_sentences(tokens, word_counts)
        else:
            # Only sentences with words are read, most of the work on short documents. How many there are depends
            # on the data, which an exported graph cannot have: it reads the empty ones too, and they give zeros.
            real = word_counts.nonzero().squeeze(-1)
            vectors_real, weights_real = self.read_sentences(tokens[real], word_counts[real])
            vectors = vectors_real.new_zeros(len(tokens), vectors_real.shape[-1]).index_copy(0, real, vectors_real)
            word_weights = weights_real.new_zeros(tokens.shape).index_copy(0, real, weights_real)
        vectors = self.dropout(vectors.unflatten(0, (documents, sentences)))
        states = self.sentence_gru(vectors, sentence_counts)
        document, sentence_weights = self.sentence_attention(states, sentence_counts)
        logits = self.classifier(self.dropout(document))
        return logits, word_weights.unflatten(0, (documents, sentences)), sentence_weights

    def read_sentences(self, tokens: Tensor, word_counts: Tensor) -> tuple[Tensor, Tensor]:
        """tokens int [M, W], word_counts int [M] -> sentence vectors [M, 2H] and word attention [M, W]."""
        words = self.dropout(self.embedding(tokens))
        return self.word_attention(self.word_gru(words, word_counts), word_counts)


def build(settings: Settings, description: dict[str, Any]) -> HierarchicalAttentionNetwork:
    """The network for a prepared text data set (``description`` is its prepared.json)."""
    return HierarchicalAttentionNetwork(settings, description["vocabulary_size"], len(description["classes"]))
