"""Documents per second of HAN's training step: ``python -m benchmarks.han [--batch N ...] [--json FILE]``, on a GPU.

One step is forward pass, loss, backward pass and update, by fused AdamW (the peer's by fused Adam); documents of 20
sentences of 3 to 30 words, uniformly drawn, a vocabulary of 50,000 vectors of 200, 50 units a direction. Ours is
training.step.Step on models/han.py, with kernels and a CUDA graph. The peer is what one would write with PyTorch alone:
it reads padding, and is timed as it is and captured in a CUDA graph, in float32 and in bfloat16 autocast. On both sides
nothing is dropped, no gradient is clipped, and PyTorch's operations are not held to those that repeat.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from batches.text import concatenate
from cuda_ext import library
from cuda_ext.bench import environment, time_samples, warmed_up
from models.objectives import make_objective
from storage.errors import InputError, command
from storage.files import write_json
from training.optimisers import make_optimiser
from training.settings import Settings
from training.step import Step

VOCABULARY, EMBEDDING, HIDDEN, CLASSES = 50_000, 200, 50, 5
SENTENCES, WORDS = 20, 30
BATCHES = (64, 256, 1024)


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
    """HAN on nn.GRU, over padded batches; padding is masked in the attention alone."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING, padding_idx=0)
        self.word_gru = nn.GRU(EMBEDDING, HIDDEN, batch_first=True, bidirectional=True)
        self.word_attention = PeerAttention(2 * HIDDEN)
        self.sentence_gru = nn.GRU(2 * HIDDEN, HIDDEN, batch_first=True, bidirectional=True)
        self.sentence_attention = PeerAttention(2 * HIDDEN)
        self.classifier = nn.Linear(2 * HIDDEN, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        documents, sentences, _ = tokens.shape
        words = tokens.flatten(0, 1)
        states, _ = self.word_gru(self.embedding(words))
        vectors = self.word_attention(states, words > 0).unflatten(0, (documents, sentences))
        states, _ = self.sentence_gru(vectors)
        real = torch.ones(documents, sentences, dtype=torch.bool, device=tokens.device)
        return self.classifier(self.sentence_attention(states, real))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.han", description="Time HAN's training step.")
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES, help="documents per step")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("the benchmark times kernels on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")
    measured = {
        "environment": environment(),
        "kernels": library.kernels(torch.device("cuda", torch.cuda.current_device())),
        "results": [measure(batch) for batch in arguments.batch],
    }
    print(table(measured))
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def measure(batch: int) -> dict[str, Any]:
    """Time our step and the peers' on one batch of ``batch`` documents."""
    torch.manual_seed(0)
    tokens = torch.randint(1, VOCABULARY, (batch, SENTENCES, WORDS), dtype=torch.int32)
    word_counts = torch.randint(3, WORDS + 1, (batch, SENTENCES), dtype=torch.int32)
    tokens *= torch.arange(WORDS) < word_counts.unsqueeze(-1)
    labels = torch.randint(0, CLASSES, (batch,), device="cuda")
    ours = {amp: our_step(amp, tokens, word_counts, labels) for amp in ("off", "bfloat16")}
    peers = {}
    for amp in ("off", "bfloat16"):
        peers[f"eager, {amp}"], peers[f"CUDA graph, {amp}"] = peer_steps(amp, tokens.cuda().long(), labels)
    rows = {f"reread, {amp}": step for amp, step in ours.items()} | peers
    timed = {name: time_samples(step, calls=1) for name, step in rows.items()}
    best = min(peers, key=lambda name: timed[name]["median_ms"])
    own = min((name for name in timed if name.startswith("reread")), key=lambda name: timed[name]["median_ms"])
    return {
        "batch": batch,
        "timed": {name: {**row, "documents_a_second": batch / row["median_ms"] * 1e3} for name, row in timed.items()},
        "best": own,
        "best_peer": best,
        "times_best_peer": timed[best]["median_ms"] / timed[own]["median_ms"],
    }


def our_step(amp: str, tokens: Tensor, word_counts: Tensor, labels: Tensor) -> Callable[[], object]:
    classes = [str(label) for label in range(CLASSES)]
    description = {"name": "drawn", "kind": "text", "task": "single-label", "vocabulary_size": VOCABULARY}
    description["classes"] = classes
    network = models.build(
        "han", {"embedding_dim": EMBEDDING, "hidden_size": HIDDEN, "dropout": 0.0}, description
    ).cuda()
    settings = Settings(amp=amp, learning_rate=1e-3, max_grad_norm=0, deterministic=False)
    objective = make_objective(settings.objective, description)
    step = Step(network, objective, make_optimiser(network, settings), settings, torch.device("cuda", 0))
    ragged = torch.from_numpy(concatenate([tokens[tokens > 0].numpy()])).cuda()
    sentence_counts = torch.full((len(labels),), SENTENCES, dtype=torch.int32)
    inputs = (ragged, word_counts.cuda(), sentence_counts.cuda())
    return lambda: step(inputs, labels, settings.learning_rate)


def peer_steps(amp: str, tokens: Tensor, labels: Tensor) -> tuple[Callable[[], object], Callable[[], object]]:
    """The peer's step, called and captured."""
    network = PeerHAN().cuda()
    optimiser = torch.optim.Adam(network.parameters(), fused=True, capturable=True)

    def step() -> None:
        optimiser.zero_grad()
        with torch.autocast("cuda", torch.bfloat16, enabled=amp == "bfloat16", cache_enabled=False):
            loss = functional.cross_entropy(network(tokens).float(), labels)
        loss.backward()
        optimiser.step()

    side = warmed_up(step, 3)
    graph = torch.cuda.CUDAGraph()
    optimiser.zero_grad()
    with torch.cuda.graph(graph, stream=side):
        step()
    return step, graph.replay


def table(measured: dict[str, Any]) -> str:
    lines = ["| batch | step | ms | spread | n | documents per second |", f"|{'---|' * 6}"]
    for result in measured["results"]:
        for name, row in result["timed"].items():
            spread = row["high_quartile_ms"] - row["low_quartile_ms"]
            lines.append(
                f"| {result['batch']} | {name} | {row['median_ms']:.3f} | {spread:.3f} | {row['n']} "
                f"| {row['documents_a_second']:,.0f} |"
            )
        lines.append(f"| {result['batch']} | best / best peer | | | | {result['times_best_peer']:.2f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)()
