"""Measures of a trained hierarchical network's gates: their distribution, memory of units, traces over texts.

The network is models/han.py with nn.GRU's cell. Gates are read by cuda_ext.gru.gates, derivatives by autograd in
float64 on the CPU. Units of both directions are side by side, the forward ones first.

Shape legend: M words, T steps, H units a direction, D = 2 H units, B bins, n rows, S sentences, K steps back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.gru import Gates, gates
from models.han import HierarchicalAttentionNetwork
from models.layers.cells import BidirectionalRecurrence, Recurrence
from models.layers.embedding import UNKNOWN
from models.layers.recurrent import BidirectionalGRU
from reread.batches import collation
from reread.storage.arrays import Float64Array
from reread.storage.prepared import Prepared
from reread.studies.jacobians import DTYPE, jacobians, network_of
from reread.studies.load_runs import batches

LEVELS = ("words", "sentences")
GATES = ("reset", "update")
BINS = 40
# A gate below it counts as closed.
CLOSED = 0.2
Trace = dict[str, dict[str, Float64Array]]


def readable(network: nn.Module) -> TypeGuard[HierarchicalAttentionNetwork]:
    """Return whether the network has two levels of GRUs whose gates can be read; a subclass holds or ties some."""
    return all(type(getattr(network, f"{level}_gru", None)) is BidirectionalGRU for level in ("word", "sentence"))


def layer_of(network: HierarchicalAttentionNetwork, level: str) -> BidirectionalGRU:
    return {"words": network.word_gru, "sentences": network.sentence_gru}[level]


@torch.no_grad()
def read(
    network: HierarchicalAttentionNetwork, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor
) -> dict[str, Gates]:
    """Documents as batches gives them ragged -> the gates of their words, [M, D], and of their sentences,
    [sentences of all, D]."""
    words, sentences = network.word_gru.flat_parameters(), network.sentence_gru.flat_parameters()
    offsets = functional.pad(word_counts.flatten().cumsum(0), (1, 0))
    of_words = gates(network.embedding(tokens), offsets, words, bidirectional=True)
    count = int(offsets[-1])
    vectors = network.read_ragged_sentences(tokens, word_counts.flatten()).unflatten(0, word_counts.shape)
    of_sentences = gates(vectors, sentence_counts, sentences, bidirectional=True)
    real = torch.arange(vectors.shape[1], device=vectors.device) < sentence_counts.unsqueeze(-1)
    return {"words": Gates(*(gate[:count] for gate in of_words)), "sentences": Gates(*(g[real] for g in of_sentences))}


class Histogram:
    """How often each unit's gate has each of B values between 0 and 1, int64 [D, B], and its mean."""

    def __init__(self) -> None:
        self.counts = torch.zeros((), dtype=torch.int64)
        self.sums = torch.zeros((), dtype=torch.float64)

    def add(self, gate: Tensor) -> None:
        """gate float [M, D]."""
        units = gate.shape[1]
        bins = (gate * BINS).long().clamp(0, BINS - 1) + BINS * torch.arange(units, device=gate.device)
        counts = torch.bincount(bins.flatten(), minlength=units * BINS).cpu()
        self.counts = self.counts + counts.unflatten(0, (-1, BINS))
        self.sums = self.sums + gate.double().sum(0).cpu()

    @property
    def means(self) -> Float64Array:
        """float64 [D]."""
        return (self.sums / self.counts.sum(dim=1)).numpy()

    @property
    def shares(self) -> Float64Array:
        """float64 [B], over all units."""
        return (self.counts.sum(dim=0) / self.counts.sum()).numpy()


@dataclass(frozen=True)
class Distribution:
    """``of[level, gate]`` over all words or sentences; ``at_words[gate]``: the mean over units, all words and each of
    the words that were asked for, float64 [1 + asked], NaN where a word does not occur."""

    of: dict[tuple[str, str], Histogram]
    at_words: dict[str, Float64Array]


def distribution(network: HierarchicalAttentionNetwork, prepared: Prepared, asked: Sequence[int]) -> Distribution:
    """The gates of every document of ``prepared``; ``asked`` are numbers of words."""
    device = next(network.parameters()).device
    histograms = {(level, gate): Histogram() for level in LEVELS for gate in GATES}
    sums, counts = {gate: np.zeros(1 + len(asked)) for gate in GATES}, np.zeros(1 + len(asked))
    for rows, _ in batches(prepared):
        given = collation.inputs(prepared, rows, device, ragged=True)
        of_levels = read(network, *given)
        for (level, gate), histogram in histograms.items():
            histogram.add(getattr(of_levels[level], gate))
        tokens = given[0][: len(of_levels["words"].reset)]
        where = [torch.ones_like(tokens, dtype=torch.bool), *(tokens == number for number in asked)]
        counts += [int(mask.sum()) for mask in where]
        for gate in GATES:
            of_words = getattr(of_levels["words"], gate).double().mean(dim=1)
            sums[gate] += [float(of_words[mask].sum()) for mask in where]
    with np.errstate(invalid="ignore"):
        return Distribution(histograms, {gate: sums[gate] / counts for gate in GATES})


def inputs_of(layer: BidirectionalGRU) -> int:
    """Return how many numbers the layer reads at a step."""
    return layer.flat_parameters()[0].shape[1]


def recurrences(layer: BidirectionalGRU) -> tuple[Recurrence, Recurrence]:
    """Both directions as for-loops in float64, on the CPU."""
    recurrence = BidirectionalRecurrence(inputs_of(layer), layer.units)
    recurrence.load_state_dict({name: value.cpu() for name, value in layer.state_dict().items()})
    recurrence = recurrence.to(DTYPE).requires_grad_(False)
    return recurrence.forwards, recurrence.backwards


@torch.no_grad()
def drawn_sequences(
    network: HierarchicalAttentionNetwork, prepared: Prepared, level: str, count: int, steps: int
) -> Tensor:
    """The input of the level's GRU at the first ``steps`` steps of ``count`` sentences (documents) that have as many,
    drawn by chance and the same each time: float64 [at most count, T, I]."""
    generator = np.random.default_rng(2)
    word_counts = np.asarray(prepared.arrays["word_counts"])
    device = next(network.parameters()).device
    if level == "words":
        lengths = word_counts.reshape(-1).astype(np.int64)
        long = np.flatnonzero(lengths >= steps)
        chosen = np.sort(generator.choice(long, min(count, len(long)), replace=False))
        places = (np.cumsum(lengths) - lengths)[chosen, None] + np.arange(steps)
        tokens = torch.from_numpy(np.asarray(prepared.arrays["tokens"][places])).to(device)
        vectors: Tensor = network.embedding(tokens)
        return vectors.to("cpu", DTYPE)
    long = np.flatnonzero(np.asarray(prepared.arrays["sentence_counts"]) >= steps)
    chosen = np.sort(generator.choice(long, min(count, len(long)), replace=False))
    if not len(chosen):
        return torch.zeros(0, steps, inputs_of(network.sentence_gru), dtype=DTYPE)
    tokens, counts, _ = collation.inputs(prepared, chosen, device, ragged=True)
    vectors = network.read_ragged_sentences(tokens, counts.flatten()).unflatten(0, counts.shape)
    return vectors[:, :steps].to("cpu", DTYPE)


def memory(layer: Recurrence, sequences: Tensor, back: int) -> Float64Array:
    """How many steps of its past each unit remembers: the sum over k = 1 to ``back`` of |dh_T,i / dh_T-k,i|, the mean
    over sequences [n, T, I], T above ``back``; float64 [H].

    A derivative of the state by the state, through both gates and every matrix: no gate is read, so that it can be
    compared with either. A unit that multiplies its state by c at each step has c + c^2 + ... = c / (1 - c).
    """
    total = np.zeros(layer.units)
    for x in sequences:
        through = jacobians(network_of(layer), x, layer.units)[1 : back + 1]
        total += through.diagonal(dim1=1, dim2=2).abs().sum(dim=0).numpy()
    return total / len(sequences)


@torch.no_grad()
def old_share_without_reset(layer: Recurrence, sequences: Tensor) -> float:
    """Of the state after a step at which every reset gate is 0, the share that is the old state's.

    h_t = z_t h_{t-1} + (1 - z_t) h~_t, h~_t = tanh(W_h x_t + b_h): the sum of |z h| over that of |z h| and
    |(1 - z) h~|, over units, steps after the first and sequences [n, T, I].
    """
    of_steps = layer.gates(sequences)
    candidate = functional.linear(sequences, layer.weight_ih_l0, layer.bias_ih_l0).chunk(3, dim=-1)[2].tanh()
    old = (of_steps.update[:, 1:] * of_steps.state[:, :-1]).abs().sum()
    new = ((1 - of_steps.update[:, 1:]) * candidate[:, 1:]).abs().sum()
    return float(old / (old + new))


def trace(
    network: HierarchicalAttentionNetwork, documents: Sequence[Sequence[Sequence[str]]], index: dict[str, int]
) -> list[Trace]:
    """For each document (its sentences' words), what its units that read forwards do at each word and each sentence:
    ``{level: {gate: float64 [words or sentences of it], "... closed": ...}}``, means over units and shares of units
    whose gate is below CLOSED. A word that ``index`` has not is unknown."""
    device = next(network.parameters()).device
    traces = []
    for sentences in documents:
        tokens = [index.get(word, UNKNOWN) for sentence in sentences for word in sentence]
        counts = torch.tensor([[len(sentence) for sentence in sentences]], dtype=torch.int32, device=device)
        given = torch.tensor(tokens, dtype=torch.int32, device=device)
        of_levels = read(network, given, counts, torch.tensor([len(sentences)], dtype=torch.int32, device=device))
        of_document: Trace = {}
        for level, both in of_levels.items():
            of_document[level] = {}
            for gate in GATES:
                forwards = getattr(both, gate).double().chunk(2, dim=1)[0].cpu()
                of_document[level][gate] = forwards.mean(dim=1).numpy()
                of_document[level][f"{gate} closed"] = (forwards < CLOSED).double().mean(dim=1).numpy()
        traces.append(of_document)
    return traces
