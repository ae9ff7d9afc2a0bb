"""Adversarial training on word vectors: adds the loss at the small perturbation that increases it most.

Source: Miyato, Dai and Goodfellow, Adversarial Training Methods for Semi-Supervised Text Classification, ICLR 2017,
section 3: r = norm g / ||g|| is added to all word vectors of a document, where g is the gradient of the document's loss
by them. The paper normalises the vectors, so that they do not outgrow the norm; here only weight decay limits them.

The network needs no change: tokens are replaced by their position in the batch, and the embedding reads a temporary
table of perturbed vectors. This works for padded rows and for ragged text.

Shape legend: N documents, S sentences per document, W words per sentence, M words of all documents, P positions of
words (N S W, or M of ragged text), E embedding.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn import functional

from models.layers.embedding import PADDING, WordEmbedding
from models.layers.sequences import offsets_of, segment_ids, sums_of_sequences


class PerturbedEmbedding:
    """The positions of the words of one batch, tokens int [N, S, W] or [M]. Word dropout is drawn here, once."""

    def __init__(self, embedding: WordEmbedding, tokens: Tensor) -> None:
        self.embedding = embedding
        self.words = embedding.word_dropout(tokens).flatten()
        number = torch.arange(1, tokens.numel() + 1, device=tokens.device).view_as(tokens)
        # The network's input in place of tokens; padding stays 0.
        self.numbers = number.masked_fill(tokens == PADDING, PADDING)

    def vectors(self) -> Tensor:
        """Return the vector at each position, float [P, E]."""
        return functional.embedding(self.words, self.embedding.weight, PADDING)

    @contextmanager
    def override_embedding(self, vectors: Tensor) -> Iterator[None]:
        """Let the embedding look up ``vectors`` [P, E] by ``numbers`` for the block."""
        self.embedding.table = functional.pad(vectors, (0, 0, 1, 0))
        try:
            yield
        finally:
            self.embedding.table = None


def worst_perturbation(gradient: Tensor, tokens: Tensor, word_counts: Tensor, norm: float) -> Tensor:
    """Return the perturbation float [P, E] for the gradient float [P, E] by the vectors of tokens [N, S, W] or [M].

    It has the gradient's direction and the Euclidean norm ``norm`` over each document; 0 where the gradient is 0."""
    squares = gradient.square().sum(dim=-1, keepdim=True)
    if tokens.ndim == 1:
        offsets = offsets_of(word_counts.sum(dim=1))
        of_document = sums_of_sequences(squares, offsets)[segment_ids(offsets, len(tokens))]
    else:
        of_document = squares.view(len(tokens), -1, 1).sum(dim=1, keepdim=True).expand(-1, tokens[0].numel(), -1)
        of_document = of_document.reshape(-1, 1)
    return norm * gradient * of_document.clamp(min=torch.finfo(gradient.dtype).tiny).rsqrt()
