"""Adversarial training on word vectors: the loss is added where a small step makes it largest.

Source: Miyato, Dai and Goodfellow, Adversarial Training Methods for Semi-Supervised Text Classification, ICLR 2017,
section 3: to all word vectors of a document r = norm g / ||g|| is added, g being the gradient of the document's loss by
them. There the vectors are normalised, lest they outgrow the norm; here weight decay alone holds them.

A network knows nothing of it. Its words are numbered through the batch, and its embedding looks the numbers up in a
table of the batch's own vectors: so the same is done to words in rows and to ragged ones, wherever they are read.

Shape legend: N documents, S sentences a document, W words a sentence, M words of all documents, P places for words
(N S W, or M of ragged text), E embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.layers.embedding import PADDING, WordEmbedding
from models.layers.sequences import owners, sums_of_sequences
from storage.errors import InputError


def word_embedding(network: nn.Module) -> WordEmbedding:
    """The network's word vectors; InputError where it has none."""
    for module in network.modules():
        if isinstance(module, WordEmbedding):
            return module
    raise InputError(f"adversarial needs word vectors, and {type(network).__name__} has none: set adversarial to 0")


class Places:
    """The places for words of one batch, tokens int [N, S, W] or [M]; word dropout is drawn here, once."""

    def __init__(self, embedding: WordEmbedding, tokens: Tensor) -> None:
        self.embedding = embedding
        self.words = embedding.word_dropout(tokens).flatten()
        number = torch.arange(1, tokens.numel() + 1, device=tokens.device).view_as(tokens)
        # What the network is given in place of tokens; padding stays 0.
        self.numbers = number.masked_fill(tokens == PADDING, PADDING)

    def vectors(self) -> Tensor:
        """The vector at each place, float [P, E]."""
        return functional.embedding(self.words, self.embedding.rows(), PADDING)

    @contextmanager
    def read_as(self, vectors: Tensor) -> Iterator[None]:
        """While the block runs, the embedding finds ``vectors`` [P, E] under ``numbers``."""
        self.embedding.table = functional.pad(vectors, (0, 0, 1, 0))
        try:
            yield
        finally:
            self.embedding.table = None


def worst(gradient: Tensor, tokens: Tensor, word_counts: Tensor, norm: float) -> Tensor:
    """gradient float [P, E] by the vectors of tokens [N, S, W] or [M] -> what is added to them, float [P, E]: along it,
    of Euclidean norm ``norm`` over each document; zero where the gradient is."""
    squares = gradient.square().sum(dim=-1, keepdim=True)
    if tokens.ndim == 1:
        offsets = functional.pad(word_counts.sum(dim=1).cumsum(0), (1, 0))
        of_document = sums_of_sequences(squares, offsets)[owners(offsets, len(tokens))]
    else:
        of_document = squares.view(len(tokens), -1, 1).sum(dim=1, keepdim=True).expand(-1, tokens[0].numel(), -1)
        of_document = of_document.reshape(-1, 1)
    return norm * gradient * of_document.clamp(min=torch.finfo(gradient.dtype).tiny).rsqrt()
