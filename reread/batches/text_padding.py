"""Batches of text that mean the same with more padding: what a check of a network compares.

Shape legend: n rows, S sentences, W words.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

Inputs = tuple[Tensor, ...]
MORE = 3  # words and sentences of padding


def pairs(inputs: Inputs) -> Iterator[tuple[Inputs, Inputs]]:
    """Yield padded ``inputs`` (reread/batches/text.py), and some without any padding, each with the same padded
    further."""
    for plain in (inputs, without_padding(inputs)):
        yield plain, padded(plain)


def without_padding(inputs: Inputs) -> Inputs:
    """Cut documents to their first sentence, and all to the words of the shortest: no place is padding."""
    tokens, word_counts, sentence_counts = inputs
    words = max(1, int(word_counts[:, 0].min()))
    kept = tokens[:, :1, :words].contiguous()
    return kept, torch.full_like(word_counts[:, :1], words), torch.ones_like(sentence_counts)


def padded(inputs: Inputs) -> Inputs:
    """Append MORE words and MORE sentences of padding: int32 [n, S + MORE, W + MORE] and their counts."""
    tokens, word_counts, sentence_counts = inputs
    more = (0, MORE)
    return functional.pad(tokens, (*more, *more)), functional.pad(word_counts, more), sentence_counts
