"""Documents per second of HAN's training step: ``python -m benchmarks.han [--batch N ...] [--json FILE]``, on a GPU.

One step is forward pass, loss, backward pass and update, by fused AdamW (the peer's by fused Adam); documents of 20
sentences of 3 to 30 words, uniformly drawn, a vocabulary of 50,000 vectors of 200, 50 units a direction. Ours is
reread.training.step.Step on models/han.py, with kernels and a CUDA graph. The peer is what one would write with PyTorch
alone. It reads padding, or it reads the sentences sorted by length beforehand, in groups padded to their own longest.
Each is timed in a CUDA graph, in float32 and in bfloat16 and float16 autocast; the peer's float16 has no scaling of the
loss. In each precision the fastest of them is also compiled by torch.compile in its strongest mode, with cuBLAS for the
products, and captured. Steps take turns, a sample each. On both sides nothing is dropped, no gradient is clipped, and
PyTorch's operations are not held to those that repeat.

Our step and one of the peer's, in fresh processes, give scores for a verdict:

    python -m cuda_ext.pairs benchmarks.han "64 documents, bfloat16" "torch.compile, bf16" --output step.jsonl
    reread judge step.jsonl --treatment this --control "torch.compile, bf16" --margin 300% --lower-is-better --paired

A margin of 300 % asks whether the peer takes four times as long.
"""

import argparse
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from cuda_ext import library
from cuda_ext.bench import GPU_STATE, Run, environment, gpu_values, time_in_turn, warmed_up
from cuda_ext.case import Case, compiled_strongest
from cuda_ext.case import Run as Function
from models.objectives import make_objective
from reread.batches.text import concatenate
from reread.storage.errors import InputError, command
from reread.storage.files import write_json
from reread.training.optimisers import make_optimiser
from reread.training.settings import Settings
from reread.training.step import Step

VOCABULARY, EMBEDDING, HIDDEN, CLASSES = 50_000, 200, 50, 5
SENTENCES, WORDS = 20, 30
BATCHES = (64, 256, 1024)
# reread.training.settings.Settings.amp, and the dtype of the peer's autocast.
AMPS = {"off": None, "bf16": torch.bfloat16, "fp16": torch.float16}
# Into how many groups of like length the peer's sentences are sorted.
GROUPS = (1, 4, 8)
# torch.compile's setting for matrix products: cuBLAS alone. Trying Triton's takes half a minute per product, and the
# best of them gained 7 us of a step of 256 documents.
CUBLAS_ALONE = {"max_autotune_gemm_backends": "ATEN"}
# Samples that choose which of the peer's steps is compiled.
FEW_SAMPLES = 10


class PeerAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.projection = nn.Linear(width, width)
        self.context_vector = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        scores = torch.tanh(self.projection(states)) @ self.context_vector
        weights = scores.masked_fill(~real, float("-inf")).softmax(-1)
        return (weights.unsqueeze(-1) * states).sum(1)


class PeerHAN(nn.Module):
    """HAN on nn.GRU, over padded batches; padding is masked in the attention alone.

    Several groups: the sentences come sorted by length, each group padded to its own longest, with the place of each
    sentence in the documents.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING, padding_idx=0)
        self.word_gru = nn.GRU(EMBEDDING, HIDDEN, batch_first=True, bidirectional=True)
        self.word_attention = PeerAttention(2 * HIDDEN)
        self.sentence_gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        self.sentence_attention = PeerAttention(2 * HIDDEN)
        self.classifier = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, groups: Sequence[Tensor], places: Tensor) -> Tensor:
        """groups: word numbers [rows, longest], 0 at padding. places: of the documents' sentences among the rows."""
        sentences = []
        for words in groups:
            states, _ = self.word_gru(self.embedding(words))
            sentences.append(self.word_attention(states, words > 0))
        vectors = torch.cat(sentences)[places]
        states, _ = self.sentence_gru(vectors)
        real = torch.ones(places.shape, dtype=torch.bool, device=places.device)
        logits: Tensor = self.classifier(self.sentence_attention(states, real))
        return logits


def grouped(tokens: Tensor, count: int) -> tuple[list[Tensor], Tensor]:
    """Sort the sentences of tokens [N, S, T] by length into ``count`` groups, each cut at its own longest.

    Returns the groups and the place [N, S] of each sentence among their rows. One group keeps its order and padding.
    """
    documents, sentences, _ = tokens.shape
    rows = tokens.flatten(0, 1)
    if count == 1:
        return [rows], torch.arange(len(rows), device=tokens.device).view(documents, sentences)
    lengths = (rows > 0).sum(1)
    order = lengths.argsort(descending=True, stable=True)
    parts = order.tensor_split(count)
    groups = [rows[part, : int(lengths[part].max())].contiguous() for part in parts]
    return groups, order.argsort().view(documents, sentences)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.han", description="Time HAN's training step.")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="documents per step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("the benchmark times kernels on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")
    measured: dict[str, Any] = {
        "environment": environment(),
        "kernels": library.kernels(torch.device("cuda", torch.cuda.current_device())),
        "results": [],
    }
    print(f"| batch | step | ms | spread | n | documents per second |\n|{'---|' * 6}", flush=True)
    for batch in arguments.batch:
        measured["results"].append(measure(batch))
        print("\n".join(lines(measured["results"][-1])), flush=True)
        if arguments.json:  # A run that is cut keeps what it has measured.
            write_json(arguments.json, measured)
    print(json.dumps(measured))


def measure(batch: int) -> dict[str, Any]:
    """Time our step and the peers' on one batch of ``batch`` documents."""
    torch.manual_seed(0)
    tokens, word_counts, labels = documents(batch)
    rows = {f"reread, {amp}": our_step(amp, tokens, word_counts, labels) for amp in AMPS}
    failures: dict[str, str] = {}

    words = tokens.cuda().long()

    def add_peer(amp: str, groups: int, compiled: bool) -> str | None:
        """Add the peer's steps; return the name of the captured one, None where it failed."""
        name = peer_name(amp, groups, compiled)
        try:
            called, captured = peer_steps(amp, *grouped(words, groups), labels, compiled)
        except RuntimeError as error:  # What cannot be compiled or captured is no reason to lose the rest.
            failures[name] = str(error)[:500]
            return None
        if groups == 1 and not compiled:
            rows[f"eager, {name}"] = called
        rows[f"CUDA graph, {name}"] = captured
        return f"CUDA graph, {name}"

    for amp in AMPS:
        added = {name: groups for groups in GROUPS if (name := add_peer(amp, groups, compiled=False))}
        timed = time_in_turn({name: Run(rows[name], 1, True) for name in added}, FEW_SAMPLES)
        if timed:
            add_peer(amp, added[min(timed, key=lambda name: timed[name]["median_ms"])], compiled=True)
    timed = time_in_turn({name: Run(step, 1, "graph" in name) for name, step in rows.items()})
    best, own = (
        min((name for name in timed if name.startswith("reread") is ours), key=lambda name: timed[name]["median_ms"])
        for ours in (False, True)
    )
    return {
        "batch": batch,
        "failures": failures,
        "gpu_state": gpu_values(GPU_STATE),
        "timed": {name: {**row, "documents_a_second": batch / row["median_ms"] * 1e3} for name, row in timed.items()},
        "best": own,
        "best_peer": best,
        "times_best_peer": timed[best]["median_ms"] / timed[own]["median_ms"],
    }


def bench_cases() -> Iterator[Case]:
    """Yield our step in each precision on each number of documents, with all forms of the peer's captured step."""
    forms = list(itertools.product(AMPS, GROUPS, (False, True)))
    for batch, (amp, dtype) in itertools.product(BATCHES, AMPS.items()):
        peers = {peer_name(*form): made_once(functools.partial(captured_peer, *form)) for form in forms}
        own = made_once(lambda labels, tokens, counts, amp=amp: our_step(amp, tokens, counts, labels))
        shape = f"{batch} documents"
        yield Case(
            "han",
            shape,
            dtype or torch.float32,
            functools.partial(inputs, batch),
            own,
            peers,
            own,
            bytes=0,
            replays=True,
        )


def inputs(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``documents``, those on the GPU first."""
    tokens, word_counts, labels = documents(batch)
    return labels, tokens, word_counts


def made_once(make: Callable[..., Callable[[], Any]]) -> Function:
    """Return a function of inputs that calls the step that ``make`` makes of them on the first call."""
    step = functools.cache(make)
    return lambda *given: step(*given)()


def captured_peer(
    amp: str, groups: int, compiled: bool, labels: Tensor, tokens: Tensor, _word_counts: Tensor
) -> Callable[[], object]:
    _, captured = peer_steps(amp, *grouped(tokens.cuda().long(), groups), labels, compiled)
    return captured


def peer_name(amp: str, groups: int, compiled: bool) -> str:
    parts = ["torch.compile" if compiled else "", f"sorted, {groups} groups" if groups > 1 else "", amp]
    return ", ".join(filter(None, parts))


def documents(batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Draw word numbers int32 [N, S, T], 0 at padding, word counts int32 [N, S], and labels [N] on the GPU."""
    tokens = torch.randint(1, VOCABULARY, (batch, SENTENCES, WORDS), dtype=torch.int32)
    word_counts = torch.randint(3, WORDS + 1, (batch, SENTENCES), dtype=torch.int32)
    tokens *= torch.arange(WORDS) < word_counts.unsqueeze(-1)
    return tokens, word_counts, torch.randint(0, CLASSES, (batch,), device="cuda")


def our_step(amp: str, tokens: Tensor, word_counts: Tensor, labels: Tensor) -> Callable[[], object]:
    classes = [str(label) for label in range(CLASSES)]
    description = {"name": "drawn", "kind": "text", "task": "single-label", "vocabulary_size": VOCABULARY}
    description["classes"] = classes
    network = models.build(
        "han", {"embedding_dim": EMBEDDING, "hidden_size": HIDDEN, "dropout": 0.0}, description
    ).cuda()
    given: dict[str, Any] = {"amp": amp, "learning_rate": 1e-3, "max_grad_norm": 0, "deterministic": False}
    settings = Settings(**given)
    objective = make_objective(settings.objective, description)
    step = Step(network, objective, make_optimiser(network, settings), settings, torch.device("cuda", 0))
    ragged = torch.from_numpy(concatenate([tokens[tokens > 0].numpy()])).cuda()
    sentence_counts = torch.full((len(labels),), SENTENCES, dtype=torch.int32)
    inputs = (ragged, word_counts.cuda(), sentence_counts.cuda())
    return lambda: step(inputs, labels, settings.learning_rate)


def peer_steps(
    amp: str, groups: Sequence[Tensor], places: Tensor, labels: Tensor, compiled: bool
) -> tuple[Callable[[], object], Callable[[], object]]:
    """The peer's step, called and captured."""
    network = PeerHAN().cuda()
    if compiled:
        # The shape of each group is compiled by itself. Once torch.compile has reached the limit, it runs a function
        # uncompiled, and what it compiled for other steps would count.
        torch._dynamo.reset()
        torch._dynamo.config.recompile_limit = 2 * max(GROUPS)
    forward = compiled_strongest(network, CUBLAS_ALONE) if compiled else network
    half = AMPS[amp]
    optimiser = torch.optim.Adam(network.parameters(), fused=True, capturable=True)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", half, enabled=half is not None, cache_enabled=False):
            loss = functional.cross_entropy(forward(groups, places).float(), labels)
        loss.backward()
        optimiser.step()

    side = warmed_up(step, 3)
    graph = torch.cuda.CUDAGraph()
    optimiser.zero_grad()
    with torch.cuda.graph(graph, stream=side):
        step()

    def replay(_kept: Callable[[], object] = step) -> None:
        graph.replay()

    return step, replay


def lines(result: dict[str, Any]) -> list[str]:
    """Format a batch's rows of the table; the spread is the interquartile range."""
    rows = []
    for name, row in result["timed"].items():
        spread = row["high_quartile_ms"] - row["low_quartile_ms"]
        rows.append(
            f"| {result['batch']} | {name} | {row['median_ms']:.3f} | {spread:.3f} | {row['n']} "
            f"| {row['documents_a_second']:,.0f} |"
        )
    return [*rows, f"| {result['batch']} | best / best peer | | | | {result['times_best_peer']:.2f} |"]


if __name__ == "__main__":
    command(main)()
