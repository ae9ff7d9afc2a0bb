"""The cost of padding: training steps with and without it, on batches of similar length and at random.

python -m benchmarks.padding --experiment quantiles-imdb     at each of its quantiles, on its prepared arrays

A step is forward pass, loss, backward pass and update. It is done in these ways:

    project                  as the project trains: batches of similar length, and a network that reads no padding
    project, any length      the same network, random batches
    longest, like length     a plain network that reads padding, batches of similar length, padded to their longest
    longest, any length      the same, random batches
    cut length               a plain network, every document padded to the lengths that the data is truncated to, as in
                             the post "Hierarchical attention network for document classification" (December 2018)

On a GPU the first and the last are replayed from CUDA graphs. Batches padded to their longest have almost as many
shapes as there are batches, so no graph is used: the time of small batches is that of launches, not of padding.

Shape legend: n rows of a batch, S sentences, W words, E embedding, H units per direction, K classes.
"""

import argparse
import json
import math
import platform
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from cuda_ext import library
from models.objectives import make_objective
from reread.batches import collation
from reread.batches.order import batches
from reread.planning.plan import Plan
from reread.planning.resolve import make_plan
from reread.runtime.gpu_lease import acquire_gpu
from reread.storage.errors import InputError, command
from reread.storage.files import write_json
from reread.storage.prepared import DESCRIPTION, Prepared, open_prepared
from reread.training.device import configure
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.step import Step

WAYS = ("project", "project, any length", "longest, like length", "longest, any length", "cut length")
# A CPU reads at most so many places of a padded batch.
MOST_PLACES_ON_CPU = 500_000
# Libraries count the numbers of an array in 32 bits: a plain network makes no larger one.
MOST_NUMBERS = 2**31
GIBIBYTE = 2**30


class PlainAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width)
        self.context_vector = nn.Parameter(torch.randn(width) * width**-0.5)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        """states [N, T, D], real bool [N, T] -> [N, D]; a row without a real step is the mean of its padding."""
        scores = torch.tanh(self.projection(states)) @ self.context_vector
        weights = scores.masked_fill(~real, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return (weights.unsqueeze(-1) * states).sum(dim=1)


class PlainHAN(nn.Module):
    """A hierarchical attention network as one writes it with PyTorch alone: nn.GRU reads every place, real or padding,
    and padding is masked in the attention alone."""

    def __init__(self, embedding: int, hidden: int, dropout: float, vocabulary_size: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding, padding_idx=0)
        self.dropout = nn.Dropout(dropout)
        self.word_gru = nn.GRU(embedding, hidden, batch_first=True, bidirectional=True)
        self.word_attention = PlainAttention(2 * hidden)
        self.sentence_gru = nn.GRU(2 * hidden, hidden, batch_first=True, bidirectional=True)
        self.sentence_attention = PlainAttention(2 * hidden)
        self.classifier = nn.Linear(2 * hidden, classes)

    def forward(self, tokens: Tensor, word_counts: Tensor, sentence_counts: Tensor) -> Tensor:
        """tokens int [n, S, W], word_counts int [n, S], sentence_counts int [n] -> logits float [n, K]."""
        documents, sentences, length = tokens.shape
        states, _ = self.word_gru(self.dropout(self.embedding(tokens.flatten(0, 1))))
        real = torch.arange(length, device=tokens.device) < word_counts.flatten().unsqueeze(-1)
        vectors = self.word_attention(states, real).unflatten(0, (documents, sentences))
        states, _ = self.sentence_gru(self.dropout(vectors))
        real = torch.arange(sentences, device=tokens.device) < sentence_counts.unsqueeze(-1)
        logits: Tensor = self.classifier(self.dropout(self.sentence_attention(states, real)))
        return logits


@dataclass(frozen=True)
class Steps:
    """The times of one way.

    seconds: of each batch's step, after one that was not timed; empty where a batch is too large. padding: the share of
    the places given to the network that are padding. peak_memory: of the GPU, GiB.
    """

    way: str
    amp: str
    seconds: list[float]
    documents: int
    padding: float
    peak_memory: float | None

    def as_row(self) -> dict[str, Any]:
        times = sorted(self.seconds)
        quartiles = np.quantile(times, [0.25, 0.5, 0.75]) * 1e3 if times else [None] * 3
        return {
            "way": self.way,
            "amp": self.amp,
            "low_quartile_ms": quartiles[0],
            "median_ms": quartiles[1],
            "high_quartile_ms": quartiles[2],
            "documents_per_second": self.documents / sum(times) if times else None,
            "padding": self.padding,
            "peak_memory_gib": self.peak_memory,
            "n": len(times),
        }


def rows_of_batches(prepared: Prepared, batch_size: int, count: int, like_length: bool) -> list[np.ndarray]:
    """Return the first ``count`` batches of an epoch of the training split: as the project makes them, or at random."""
    rows = prepared.rows("train")
    sizes = collation.sizes(prepared, rows) if like_length else np.zeros(len(rows), np.int64)
    return batches(rows, sizes, batch_size, seed=0, epoch=1)[:count]


def padded_to(inputs: tuple[Tensor, ...], sentences: int, words: int) -> tuple[Tensor, ...]:
    """Add padding to padded tokens and counts, up to [n, sentences, words]."""
    tokens, word_counts, sentence_counts = inputs
    more = sentences - tokens.shape[1]
    tokens = functional.pad(tokens, (0, words - tokens.shape[2], 0, more))
    return tokens, functional.pad(word_counts, (0, more)), sentence_counts


class Timer:
    """Times the ways on one data set that is truncated to the lengths ``kept``: sentences, words."""

    def __init__(
        self,
        prepared: Prepared,
        kept: tuple[int, int],
        network: dict[str, Any],
        training: Settings,
        device: torch.device,
        count: int,
    ) -> None:
        self.prepared = prepared
        self.kept = kept
        self.network = network
        self.training = training
        self.device = device
        self.count = count

    def all_ways(self) -> list[Steps]:
        """Time every way in float32 and, on a GPU, in bfloat16; the faster of the two counts."""
        amps = ("off", "bf16") if self.device.type == "cuda" else ("off",)
        fastest = []
        for way in WAYS:
            each = [self.way(way, amp) for amp in amps]
            fastest.append(min(each, key=lambda steps: sum(steps.seconds) if steps.seconds else math.inf))
        return fastest

    def way(self, way: str, amp: str) -> Steps:
        rows = rows_of_batches(self.prepared, self.training.batch_size, self.count, not way.endswith("any length"))
        places, words = self.places(way, rows)
        padding = 1 - words / sum(places)
        documents = sum(map(len, rows))
        if not way.startswith("project") and max(places) > self.most_places():
            return Steps(way, amp, [], documents, padding, None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            seconds = self.seconds(way, amp, rows)
        except torch.OutOfMemoryError:
            return Steps(way, amp, [], documents, padding, None)
        peak = torch.cuda.max_memory_allocated(self.device) / GIBIBYTE if self.device.type == "cuda" else None
        return Steps(way, amp, seconds, documents, padding, peak)

    def most_places(self) -> int:
        """Return how many places of a padded batch a plain network reads at most."""
        if self.device.type == "cpu":
            return MOST_PLACES_ON_CPU
        widest: int = max(self.network["embedding_dim"], 6 * self.network["hidden_size"])
        return MOST_NUMBERS // widest

    def seconds(self, way: str, amp: str, rows: list[np.ndarray]) -> list[float]:
        torch.manual_seed(0)
        own = way.startswith("project")
        # The plain network's batches have one shape only where all are padded alike: no graph for each other.
        graphs = self.training.cuda_graphs and (own or way == "cut length")
        settings = Settings(**{**vars(self.training), "amp": amp, "cuda_graphs": graphs})
        network: nn.Module
        if own:
            network = models.build("han", self.network, self.prepared.description)
        else:
            about = self.prepared.description
            embedding, hidden, dropout = (self.network[name] for name in ("embedding_dim", "hidden_size", "dropout"))
            network = PlainHAN(embedding, hidden, dropout, about["vocabulary_size"], len(about["classes"]))
        network = network.to(self.device).train()
        objective = make_objective(settings.objective, self.prepared.description)
        step = Step(network, objective, make_optimiser(network, settings), settings, self.device)
        # Twice over, so that what is done once for a shape is not timed: the second time a graph is captured.
        for timed in (False, False, True):
            times = []
            for batch in rows:
                inputs, labels = self.inputs(way, batch), collation.labels(self.prepared, batch, self.device)
                self.wait()
                start = time.perf_counter()
                step(inputs, labels, 1e-4)
                self.wait()
                if timed:
                    times.append(time.perf_counter() - start)
        return times

    def inputs(self, way: str, batch: np.ndarray) -> tuple[Tensor, ...]:
        ragged = way.startswith("project") and self.device.type == "cuda"
        network_inputs = collation.inputs(self.prepared, batch, self.device, ragged=ragged)
        return padded_to(network_inputs, *self.kept) if way == "cut length" else network_inputs

    def places(self, way: str, rows: list[np.ndarray]) -> tuple[list[int], int]:
        """Return how many places each batch gives the network to read, and how many words all of them have."""
        places, words = [], 0
        for batch in rows:
            words += int(collation.sizes(self.prepared, batch).sum())
            if way == "cut length":
                places.append(len(batch) * math.prod(self.kept))
            elif way.startswith("project") and self.device.type == "cuda":
                places.append(collation.inputs(self.prepared, batch, ragged=True)[0].numel())
            else:
                counts = self.prepared.arrays["word_counts"][batch]
                sentences = self.prepared.arrays["sentence_counts"][batch].max()
                places.append(len(batch) * int(sentences) * int(counts.max()))
        return places, words

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def measure(plan: Plan, device: torch.device, count: int) -> list[dict[str, Any]]:
    """Time every way on the arrays of each variant of ``plan``; a row for each. InputError where one is not a HAN."""
    folders = {key: Path(about["directory"]) for key, about in plan.preparations().items()}
    rows = []
    for name, variant in plan.variants.items():
        if variant.model != "han":
            raise InputError(f"variant '{name}' is a {variant.model}: give an experiment of HANs")
        folder = folders[str(variant.prepared_key)]
        if not (folder / DESCRIPTION).is_file():
            raise InputError(f"{folder} is missing: run `reread preprocess --experiment {plan.name}`")
        prepared = open_prepared(folder)
        lengths = prepared.description["lengths"]
        kept = (lengths["sentences"]["kept"], lengths["words"]["kept"])
        timer = Timer(prepared, kept, dict(variant.network), variant.settings()[1], device, count)
        about = {"data": variant.data, "variant": name, **variant.preprocessing["length_quantile"]}
        rows += [{**about, **steps.as_row()} for steps in timer.all_ways()]
    return rows


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.padding", description=__doc__.split("\n\n")[0])
    parser.add_argument("--experiment", default="quantiles-docstrings", help="of HANs; %(default)s")
    parser.add_argument("--batches", type=int, default=30, help="timed for each way; %(default)s")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.batches < 1:
        raise InputError(f"--batches is {arguments.batches}: give 1 or more")
    plan = make_plan(arguments.experiment)
    with acquire_gpu() as device, warnings.catch_warnings():
        if device.type == "cpu":
            # References are what is meant to run on a CPU.
            warnings.simplefilter("ignore", library.ReferenceWarning)
        configure(Settings())
        measured: dict[str, Any] = {
            "experiment": plan.name,
            "machine": platform.machine(),
            "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else None,
            "kernels": library.kernels(device),
            "torch": torch.__version__,
            "results": measure(plan, device, arguments.batches),
        }
    print(table(measured["results"]))
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the figures as a Markdown table."""
    columns = ("data", "variant", "way", "amp", "median_ms", "documents_per_second", "padding", "peak_memory_gib", "n")
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [f"{row[name]:.4g}" if isinstance(row[name], float) else str(row[name] or "") for name in columns]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
