"""Word vectors, what they begin as, and the dropout of whole words."""

from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage.errors import InputError
from storage.prepared import Prepared

PADDING, UNKNOWN = 0, 1
DEVIATION = 0.1
# Drawn at random, or word2vec's of the training split, which preprocessing makes where it is told to. Both are trained.
Vectors = Literal["random", "word2vec"]


class WordDropout(nn.Module):
    """In training each word becomes the unknown word with a probability, so that no one word is relied on.

    Sources: Iyyer et al., Deep Unordered Composition Rivals Syntactic Methods for Text Classification, 2015, leave
    words out; Bowman et al., Generating Sentences from a Continuous Space, 2016, make them unknown, as here.
    """

    def __init__(self, probability: float, of_types: float = 0.0, vocabulary_size: int = 0) -> None:
        """of_types: the probability that all places of a word in a batch become unknown at once (Gal and Ghahramani,
        A Theoretically Grounded Application of Dropout in Recurrent Neural Networks, 2016, section 4.2)."""
        super().__init__()
        self.probability = probability
        self.of_types = of_types
        self.vocabulary_size = vocabulary_size

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int of any shape -> the same with words of 1 in place of some; padding stays."""
        if not self.training or self.probability == self.of_types == 0:
            return tokens
        dropped = torch.rand(tokens.shape, device=tokens.device) < self.probability
        if self.of_types:
            types = torch.rand(self.vocabulary_size, device=tokens.device) < self.of_types
            dropped |= types[tokens.long()]
        return tokens.masked_fill(dropped & (tokens != PADDING), UNKNOWN)

    def extra_repr(self) -> str:
        return f"{self.probability}"


class WordEmbedding(nn.Embedding):
    """A vector for each word, after word dropout; word 0 is padding, whose vector is zero and stays so.

    Drawn with a deviation of 0.1 and not PyTorch's 1: a word that is seen a few times keeps much of what it began
    with, which at 1 is louder than what is learnt.
    """

    def __init__(
        self,
        vocabulary_size: int,
        width: int,
        word_dropout: float = 0.0,
        vectors: Vectors = "random",
        type_dropout: float = 0.0,
        normalised: bool = False,
    ) -> None:
        """vectors: ``word2vec`` asks ``begin_with_prepared_vectors`` for the data set's. normalised: each number of a
        vector has mean 0 and variance 1 over the words of the training split, as Miyato et al. 2017, equation 1, so
        that vectors cannot outgrow an adversarial perturbation."""
        super().__init__(vocabulary_size, width, padding_idx=PADDING)
        self.word_dropout = WordDropout(word_dropout, type_dropout, vocabulary_size)
        self.normalised = normalised
        if normalised:
            self.register_buffer("frequencies", torch.full((vocabulary_size, 1), 1 / vocabulary_size))
        self.vectors = vectors
        # Where set, tokens are rows of this, float [., E], and not words (training/adversarial.py).
        self.table: Tensor | None = None

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=DEVIATION)
        with torch.no_grad():
            self.weight[PADDING].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens int of any shape -> their vectors, with one dimension more."""
        if self.table is not None:
            return functional.embedding(tokens, self.table, PADDING)
        return functional.embedding(self.word_dropout(tokens), self.rows(), PADDING)

    def rows(self) -> Tensor:
        """The vectors of all words, float [V, D], as they are read."""
        if not self.normalised:
            return self.weight
        mean = (self.frequencies * self.weight).sum(0)
        deviation = (self.frequencies * (self.weight - mean).square()).sum(0).add(1e-6).sqrt()
        rows = (self.weight - mean) / deviation
        return rows * (torch.arange(len(rows), device=rows.device) != PADDING).unsqueeze(1)


def count_words(prepared: Prepared, vocabulary_size: int) -> Tensor:
    """How often each word stands in the training split, float [V]."""
    start, stop = prepared.first_words[list(prepared.description["splits"]["train"])]
    read = prepared.arrays["tokens"][start:stop]
    return torch.tensor(np.bincount(read, minlength=vocabulary_size), dtype=torch.float)


def begin_with_prepared_vectors(network: nn.Module, prepared: Prepared) -> None:
    """Copy ``prepared``'s word vectors (float32 [V, D]) into every embedding that asks for them, before training.

    InputError where the data set has none, or of another width than the network's.
    """
    for embedding in network.modules():
        if isinstance(embedding, WordEmbedding) and embedding.normalised:
            counts = count_words(prepared, embedding.num_embeddings)
            embedding.frequencies.copy_((counts / counts.sum()).unsqueeze(1))
        if not isinstance(embedding, WordEmbedding) or embedding.vectors == "random":
            continue
        name = prepared.description["name"]
        if "word_vectors" not in prepared.arrays:
            raise InputError(
                f"word_vectors is word2vec, and {name} was prepared without: set preprocessing.{name}.word_vectors"
            )
        vectors = torch.tensor(prepared.arrays["word_vectors"])
        if vectors.shape[1] != embedding.embedding_dim:
            raise InputError(
                f"embedding is {embedding.embedding_dim}, and the word vectors of {name} have "
                f"{vectors.shape[1]} numbers: set embedding or preprocessing.{name}.word_vectors.size to the other"
            )
        with torch.no_grad():
            embedding.weight.copy_(vectors)
            embedding.weight[PADDING].zero_()
