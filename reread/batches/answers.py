"""The answers of a network in readable form: labels, probabilities by class name, and attention by word.

Shape legend: n rows, S sentences per document, W words per sentence, K classes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from models.layers.attention import Attention
from reread import kinds
from reread.batches.collation import inputs, sizes
from reread.batches.inference import predict
from reread.goals import goal
from reread.storage.arrays import Float32Array
from reread.storage.prepared import Prepared

if TYPE_CHECKING:
    from models import Network

ROWS_AT_A_TIME = 128


def attends(network: nn.Module) -> bool:
    """Return whether the network has attention; a mean or maximum in its place has none."""
    return hasattr(network, "attend") and any(isinstance(part, Attention) for part in network.modules())


def answer(network: "Network", prepared: Prepared) -> dict[str, list[Any]]:
    """Return one entry per row of ``prepared`` in each column of ``Goal.columns`` (reread/goals)."""
    scores = predict(network, prepared, np.arange(_rows(prepared)), ROWS_AT_A_TIME)
    return _columns(network, scores, prepared)


def answer_with_attention(
    network: "Network", prepared: Prepared, words: Sequence[Sequence[Sequence[str]]]
) -> dict[str, list[Any]]:
    """Return ``answer`` with a column ``attention``, for a network that ``attends``.

    ``words``: for each row the sentences that were read, each a list of words. Attention of a row: for each of its
    sentences the ``weight``, the ``words``, and the weight of each in the sentence, ``word_weights``.
    """
    device = next(network.parameters()).device
    order = np.argsort(sizes(prepared, np.arange(_rows(prepared))), kind="stable")
    logits = np.empty((len(order), len(prepared.classes)), np.float32)
    attention: list[Any] = [None] * len(order)
    for start in range(0, len(order), ROWS_AT_A_TIME):
        rows = order[start : start + ROWS_AT_A_TIME]
        with torch.no_grad():
            attended = network.attend(*inputs(prepared, rows, device))
        logits[rows], of_words, of_sentences = (tensor.float().cpu().numpy() for tensor in attended)
        for place, row in enumerate(rows):
            attention[row] = [
                {"weight": float(weight), "words": sentence, "word_weights": weights[: len(sentence)].tolist()}
                for weight, sentence, weights in zip(of_sentences[place], words[row], of_words[place], strict=False)
            ]
    return {**_columns(network, logits, prepared), "attention": attention}


def _rows(prepared: Prepared) -> int:
    return len(prepared.arrays[kinds.kind(prepared.kind).row_array])


def _columns(network: "Network", scores: Float32Array, prepared: Prepared) -> dict[str, list[Any]]:
    """scores float32 [n, K] -> the columns of the goal by the network's ``objective``."""
    probabilities = network.objective.probabilities(torch.from_numpy(scores).double()).numpy()
    return goal(prepared.task).columns(probabilities, prepared.classes)
