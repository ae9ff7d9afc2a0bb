"""Word vectors trained from nothing on a small corpus."""

import torch
from torch import nn

DEVIATION = 0.1


class WordEmbedding(nn.Embedding):
    """A vector for each word; word 0 is padding, whose vector is zero and stays so.

    Drawn with a deviation of 0.1 and not PyTorch's 1: a word that is seen a few times keeps much of what it began
    with, which at 1 is louder than what is learnt.
    """

    def __init__(self, vocabulary_size: int, width: int) -> None:
        super().__init__(vocabulary_size, width, padding_idx=0)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=DEVIATION)
        with torch.no_grad():
            self.weight[0].zero_()
