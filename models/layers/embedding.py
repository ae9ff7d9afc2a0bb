"""Word vectors, their initial values, and the dropout of whole words."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.embedding import embedding
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared

PADDING, UNKNOWN = 0, 1
DEVIATION = 0.1
# Random, or word2vec of the training split, made by preprocessing where ``word_vectors`` is set. Both are trained.
Vectors = Literal["random", "word2vec"]


class WordDropout(nn.Module):
    """Replaces words by the unknown word at random in training, so that the network relies on no single word.

    Sources: Iyyer et al., Deep Unordered Composition Rivals Syntactic Methods for Text Classification, 2015, remove
    words; Bowman et al., Generating Sentences from a Continuous Space, 2016, replace them by the unknown word, as here.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int of any shape -> the same with words of 1 in place of some; padding stays."""
        if not self.training or self.probability == 0:
            return tokens
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.probability
        return tokens.masked_fill(dropped & (tokens != PADDING), UNKNOWN)

    def extra_repr(self) -> str:
        return f"{self.probability}"


class WordEmbedding(nn.Embedding):
    """A vector for each word, after word dropout; word 0 is padding, whose vector is zero and stays so.

    Drawn with a deviation of 0.1 instead of PyTorch's 1: a rare word keeps much of its initial vector, which at 1 would
    outweigh the learnt part.
    """

    def __init__(
        self, vocabulary_size: int, width: int, word_dropout: float = 0.0, vectors: Vectors = "random"
    ) -> None:
        """vectors: ``word2vec`` takes the data set's at ``init_from_data``."""
        super().__init__(vocabulary_size, width, padding_idx=PADDING)
        self.word_dropout = WordDropout(word_dropout)
        self.vectors = vectors
        # Where set, tokens are rows of this, float [., E], and not words (reread/training/adversarial.py).
        self.table: Tensor | None = None

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=DEVIATION)
        with torch.no_grad():
            self.weight[PADDING].zero_()

    def init_from_data(self, prepared: Prepared) -> None:
        """Copy the word vectors of ``prepared`` (float32 [V, D]) before training, where the settings name them.

        InputError where the data set has none, or of another width.
        """
        if self.vectors == "random":
            return
        name = prepared.description["name"]
        refuse_missing_vectors(self.vectors, name, "word_vectors" in prepared.arrays)
        vectors = torch.tensor(prepared.arrays["word_vectors"])
        if vectors.shape[1] != self.embedding_dim:
            raise InputError(
                f"embedding_dim is {self.embedding_dim}, and the word vectors of {name} have {vectors.shape[1]} "
                f"numbers: set embedding_dim or preprocessing.{name}.word_vectors.size to the other"
            )
        with torch.no_grad():
            self.weight.copy_(vectors)
            self.weight[PADDING].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int of any shape -> their vectors, with one dimension more."""
        table, rows = (self.weight, self.word_dropout(tokens)) if self.table is None else (self.table, tokens)
        if table.is_cuda:
            return embedding(table, rows, PADDING)
        return functional.embedding(rows, table, PADDING)


def word_embedding(network: nn.Module, setting: str, off: int) -> WordEmbedding:
    """Return the network's word vectors; InputError that names ``setting``, which needs them unless it is ``off``."""
    for module in network.modules():
        if isinstance(module, WordEmbedding):
            return module
    raise InputError(f"{setting} needs word vectors, and {type(network).__name__} has none: set {setting} to {off}")


def refuse_missing_vectors(vectors: Vectors, data: str, there: bool) -> None:
    """Raise InputError where ``vectors`` is word2vec and data set ``data`` is prepared without word vectors."""
    if vectors == "word2vec" and not there:
        raise InputError(
            f"word_vectors is word2vec, and {data} is prepared without: set preprocessing.{data}.word_vectors"
        )
