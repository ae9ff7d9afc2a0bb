"""The mean of a document's word vectors and a linear classifier: no order, no sentences, no recurrence.

A baseline for networks that read in order. Source: Iyyer et al., Deep Unordered Composition Rivals Syntactic Methods
for Text Classification, ACL 2015, section 2, without its hidden layers; word dropout is of section 3.

Shape legend: N documents, S sentences per document, W words per sentence, E embedding, M words of all documents,
K classes.
"""

from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor, nn

from models.layers.classifier import Classifier
from models.layers.embedding import PADDING, Vectors, WordEmbedding
from models.layers.parameter_groups import parameter_groups
from models.layers.sequences import offsets_of, real_steps, sums_of_sequences
from reread.storage.settings import Range

KIND = "text"


@dataclass(frozen=True)
class Settings:
    """The settings of this network.

    embedding_dim: numbers per word; dropout: of the mean; word_dropout: of whole words; embedding_lr_scale: the word
    vectors' share of the learning rate; word_vectors: their initial values.
    """

    embedding_dim: Annotated[int, Range(1, 4096)] = 32
    dropout: Annotated[float, Range(0, 0.95)] = 0.5
    word_dropout: Annotated[float, Range(0, 0.95)] = 0.0
    embedding_lr_scale: Annotated[float, Range(0, 1)] = 1.0
    word_vectors: Vectors = "random"


DEBUG = Settings(embedding_dim=8)


class WordAverage(nn.Module):
    reads_ragged = True

    def __init__(self, settings: Settings, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        self.embedding = WordEmbedding(
            vocabulary_size, settings.embedding_dim, settings.word_dropout, settings.word_vectors
        )
        self.embedding_lr_scale = settings.embedding_lr_scale
        self.dropout = nn.Dropout(settings.dropout)
        self.classifier = Classifier(settings.embedding_dim, classes)

    def parameter_groups(self) -> list[dict[str, Any]]:
        return parameter_groups(self, self.embedding, self.embedding_lr_scale)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [N, S, W], word_counts int [N, S], sentence_counts int [N] (not used) -> logits float [N, K].

        Ragged: tokens int [M], all words one after the other, and whatever follows them.
        """
        counts = word_counts.sum(dim=1)
        if tokens.ndim == 1:
            sums = sums_of_sequences(self.embedding(tokens), offsets_of(counts))
        else:
            # Padding between the sentences has a vector of zeros, which adds nothing to a sum.
            real = real_steps(word_counts, tokens.shape[2])
            sums = self.embedding(tokens.masked_fill(~real, PADDING)).sum(dim=(1, 2))
        documents = sums / counts.clamp(min=1).unsqueeze(-1)
        return self.classifier(self.dropout(documents))


def build(settings: Settings, description: dict[str, Any]) -> WordAverage:
    """Build the network for a prepared text data set (``description`` is its prepared.json)."""
    return WordAverage(settings, description["vocabulary_size"], len(description["classes"]))
