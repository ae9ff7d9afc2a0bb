"""Rows of a prepared data set as a network's inputs, its loss, and its predictions.

Shape legend: n rows of a batch, S sentences a document, W words a sentence, H x W x C an image, K classes.
"""

import warnings
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.library import ReferenceWarning
from storage.prepared import Prepared


def inputs(
    prepared: Prepared, rows: np.ndarray, device: torch.device | str = "cpu", ragged: bool = False
) -> tuple[Tensor, ...]:
    """The network's arguments for ``rows`` (int [n]).

    text: tokens int32 [n, S, W], word_counts int32 [n, S], sentence_counts int32 [n], cut to the longest document
    and sentence among the rows, which changes no output because the networks do not see padding.
    text, ragged: tokens int32 [M], the rows' words one after the other and then zeros up to one of few lengths, with
    counts as before, S being the next power of two or all that the data set has: the shapes of a data set's batches are
    few, as CUDA graphs want them.
    image: float32 [n, C, H, W], (pixel / 255 - mean) / deviation.
    """
    if prepared.kind == "text":
        sentence_counts = prepared.arrays["sentence_counts"][rows]
        longest = int(sentence_counts.max())
        if ragged:
            word_counts = prepared.arrays["word_counts"][rows, : 1 << (longest - 1).bit_length()]
            tokens = in_a_row(documents(prepared, rows))
        else:
            word_counts = prepared.arrays["word_counts"][rows, :longest]
            tokens = padded(documents(prepared, rows), word_counts)
        return tuple(torch.from_numpy(array).to(device) for array in (tokens, word_counts, sentence_counts))
    images = torch.from_numpy(prepared.arrays["images"][rows]).to(device).permute(0, 3, 1, 2)
    mean, deviation = (
        torch.tensor(prepared.description[name], device=device).reshape(1, -1, 1, 1) for name in ("mean", "deviation")
    )
    return ((images.float() / 255 - mean) / deviation,)


def documents(prepared: Prepared, rows: np.ndarray) -> list[np.ndarray]:
    """The words of each of ``rows``, int32 [its words]: parts of the prepared array, not copied."""
    # Of a plain array slices are made much faster than of numpy's memmap, and as little is read.
    tokens, first_words = np.asarray(prepared.arrays["tokens"]), prepared.first_words
    places = zip(first_words[rows].tolist(), first_words[rows + 1].tolist(), strict=True)
    return [tokens[first:stop] for first, stop in places]


def padded(documents: Sequence[np.ndarray], word_counts: np.ndarray) -> np.ndarray:
    """The words of ``documents``, of which ``word_counts`` int32 [n, S] stand in each sentence -> int32 [n, S, W]."""
    words, longest = torch.from_numpy(np.concatenate(documents)), int(word_counts.max())
    counts = torch.from_numpy(word_counts).flatten().long()
    # From a word's place in the row of all words to its place in the array: as far as its sentence is moved.
    moved = torch.arange(len(counts)) * longest - (counts.cumsum(0) - counts)
    places = torch.repeat_interleave(moved, counts, output_size=len(words)).add_(torch.arange(len(words)))
    tokens = torch.zeros(len(counts) * longest, dtype=torch.int32).scatter_(0, places, words)
    return tokens.numpy().reshape(*word_counts.shape, longest)


def in_a_row(documents: Sequence[np.ndarray]) -> np.ndarray:
    """The words of ``documents``, each int32 [its words], one after the other, then zeros up to a round length, [M].

    Round: the next multiple of a sixteenth of the next power of two, at most an eighth more; eight lengths double it.
    """
    words = sum(map(len, documents))
    step = max(1, 2 ** (words.bit_length() - 4))
    room = np.zeros(max(step, -(-words // step) * step), np.int32)
    np.concatenate(documents, out=room[:words])
    return room


def reads_ragged(network: nn.Module, device: torch.device) -> bool:
    """Whether ``network`` is given text without padding: where it says that it can, on a GPU, which has the kernels."""
    return device.type == "cuda" and getattr(network, "reads_ragged", False)


def labels(prepared: Prepared, rows: np.ndarray, device: torch.device | str = "cpu") -> Tensor:
    """The labels of ``rows``: int64 [n] where each has one, float32 [n, K] of 0 and 1 where it has several."""
    kind = torch.float32 if prepared.task == "multi-label" else torch.int64
    return torch.from_numpy(prepared.labels[rows]).to(device, kind)


def loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean loss of logits [n, K]: cross entropy for target int64 [n], binary cross entropy for float32 [n, K]."""
    if target.ndim == 1:
        return functional.cross_entropy(logits, target, label_smoothing=label_smoothing)
    smooth = target * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits, smooth)


def correct(logits: Tensor, target: Tensor) -> Tensor:
    """Which rows (bool [N]) or, with several labels, which entries (bool [N, K], cut at one half) are right."""
    return logits.argmax(dim=1) == target if target.ndim == 1 else (logits > 0) == target.bool()


def sizes(prepared: Prepared, rows: np.ndarray) -> np.ndarray:
    """What a row costs to read, int64 [n]: its words, or 1 for an image. Rows of like size make a batch."""
    if prepared.kind == "text":
        return prepared.first_words[rows + 1] - prepared.first_words[rows]
    return np.ones(len(rows), np.int64)


@torch.no_grad()
def predict(network: nn.Module, prepared: Prepared, rows: np.ndarray, batch_size: int = 128) -> np.ndarray:
    """The logits of ``rows``, float32 [n, K], in the order given, in evaluation mode; same input, same bytes.

    Rows are read in order of their size, so that a batch has little padding. The network keeps its mode.
    """
    training = network.training
    network.eval()
    device = next(network.parameters()).device
    order = np.argsort(sizes(prepared, rows), kind="stable")
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    ragged = reads_ragged(network, device)
    with warnings.catch_warnings():
        if device.type == "cpu":
            # Whoever predicts there means to: no kernel runs on a CPU.
            warnings.simplefilter("ignore", ReferenceWarning)
        found = [network(*inputs(prepared, rows[batch], device, ragged)).float().cpu().numpy() for batch in batches]
    network.train(training)
    logits = np.empty((len(rows), len(prepared.classes)), np.float32)
    logits[order] = np.concatenate(found)
    return logits
