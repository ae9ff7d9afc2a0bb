"""Time the capsule network's training step against plain PyTorch: ``python -m benchmarks.capsules``.

The network is the paper's on MNIST's images, with three iterations of routing and reconstruction. A step is forward,
margin loss with reconstruction, backward, and AdamW. Ours runs under bfloat16 autocast in a CUDA graph, as training
does. The plain network has the same weights and is written as the paper prints it and as most public code has it: the
votes by a broadcast product, routing by sums over [images, primary capsules, classes, dimensions], the gradient through
all of it. It is timed eager in float32, as it comes, and by stronger means: bfloat16, a CUDA graph, torch.compile. All
steps use the same random images and labels.

Before timing, loss and gradients of both are compared in float32 with those of the plain network in float64, with the
gradient of our routing through all of it too. ``--parts`` times the parts of our step alone.
"""

import argparse
import copy
import gc
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext import bench
from cuda_ext.case import STRONGEST
from models import capsnet
from models.capsnet import CapsuleNetwork, autocast_dtype
from models.objectives import Objective, make_objective
from reread.storage.errors import InputError, command
from reread.storage.files import write_json

SAMPLES = 20
BATCH = 128
PIXELS, CLASSES = 28, 10
DESCRIPTION = {
    "name": "random",
    "kind": "image",
    "task": "single-label",
    "classes": list(range(CLASSES)),
    "arrays": {"images": {"shape": [1, PIXELS, PIXELS, 1]}},
    "mean": [0.1307],
    "deviation": [0.3081],
}
# name: half precision, compiled, in a CUDA graph
PEERS = {
    "plain, float32": (False, False, False),
    "plain, float32, CUDA graph": (False, False, True),
    "plain, bfloat16": (True, False, False),
    "plain, bfloat16, CUDA graph": (True, False, True),
    "torch.compile, float32, CUDA graph": (False, True, True),
    "torch.compile, bfloat16, CUDA graph": (True, True, True),
}


class Plain(nn.Module):
    """The capsule network with the weights of ``network``, in the paper's own terms."""

    def __init__(self, network: CapsuleNetwork) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        network, settings = self.network, self.network.settings
        network.decoder_dtype = autocast_dtype(images)
        maps = network.primary(functional.relu(network.convolution(images)))
        primary = maps.permute(0, 2, 3, 1).reshape(len(images), -1, settings.primary_dim)
        primary = self.squash(primary)
        # [primary capsules, classes, dimensions, primary dimensions]
        weight = network.weight.unflatten(2, (-1, settings.capsule_dim)).permute(0, 2, 3, 1)
        votes = torch.matmul(weight, primary[:, :, None, :, None]).squeeze(4)
        logits = votes.new_zeros(votes.shape[:3])
        for iteration in range(settings.routing_iterations):
            capsules = self.squash((logits.softmax(dim=2).unsqueeze(3) * votes).sum(dim=1))
            if iteration < settings.routing_iterations - 1:
                logits = logits + (votes * capsules.unsqueeze(1)).sum(dim=3)
        return capsules.norm(dim=2), capsules

    def reconstruct(self, capsules: Tensor, mask: Tensor) -> Tensor:
        return self.network.reconstruct(capsules, mask)

    @staticmethod
    def squash(vectors: Tensor) -> Tensor:
        length: Tensor = vectors.norm(dim=-1, keepdim=True)
        return length**2 / (1 + length**2) * vectors / (length + 1e-8)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.capsules", description="Time the capsule network's training step."
    )
    parser.add_argument("--batch", type=int, default=BATCH, help=f"images a step (default: {BATCH})")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument("--parts", action="store_true", help="time the parts of our step alone as well")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes minutes")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        raise InputError("the benchmark times steps on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")
    if arguments.batch < 1:
        raise InputError(f"--batch is {arguments.batch}: give at least 1")
    torch.backends.cudnn.benchmark = True
    measured: dict[str, Any] = {"environment": bench.environment(), "equality": equality(), "results": []}
    print("| against float64 | loss | gradients |\n|---|---|---|")
    for name, (loss, gradients) in measured["equality"].items():
        print(f"| {name} | {loss:.1e} | {gradients:.1e} |")
    print(f"\n| step | batch | images/s | ms | spread | n | peak GiB | times |\n|{'---|' * 8}", flush=True)
    plain = None
    for name, how in variants(not arguments.no_compile):
        row = measure(name, arguments.batch, **how)
        plain = plain or row["median_ms"]
        row["times_plain"] = plain / row["median_ms"]
        measured["results"].append(row)
        print(time_line(row), flush=True)
    if arguments.parts:
        measured["parts"] = parts(arguments.batch)
        print("\n| part of our step | ms | spread |\n|---|---|---|")
        for name, timed in measured["parts"].items():
            print(f"| {name} | {timed['median_ms']:.4f} | {timed['high_quartile_ms'] - timed['low_quartile_ms']:.4f} |")
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def variants(compiled: bool) -> list[tuple[str, dict[str, Any]]]:
    """The steps to be timed, the plain one first."""
    peers = [
        (name, {"own": False, "half": half, "compiled": compile_it, "captured": captured})
        for name, (half, compile_it, captured) in PEERS.items()
        if compiled or not compile_it
    ]
    own = [
        (f"this, {'bfloat16' if half else 'float32'}{', CUDA graph' if captured else ''}",
         {"own": True, "half": half, "compiled": False, "captured": captured})
        for half, captured in ((True, True), (True, False), (False, True))
    ]  # fmt: skip
    return peers[:1] + own + peers[1:]


def network(**settings: Any) -> CapsuleNetwork:
    """Build our network on the GPU, equal for equal settings."""
    torch.manual_seed(0)
    return capsnet.build(capsnet.Settings(**settings), DESCRIPTION).cuda()


def batch(size: int) -> tuple[Tensor, Tensor]:
    """Draw images float32 [N, 1, 28, 28] and labels [N]."""
    torch.manual_seed(1)
    return torch.randn(size, 1, PIXELS, PIXELS, device="cuda"), torch.randint(CLASSES, (size,), device="cuda")


def objective() -> Objective:
    return make_objective({"name": "margin"}, DESCRIPTION)


def equality() -> dict[str, tuple[float, ...]]:
    """Return the relative errors of loss and gradients of both networks in float32, against the plain in float64."""
    images, labels = batch(8)
    built = network(routing_gradient="all")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        exact = _loss_and_gradients(Plain(copy.deepcopy(built).double()), images.double(), labels)
        results = {name: _loss_and_gradients(module, images, labels) for name, module in _both(built).items()}
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    return {
        name: tuple(float((a - b).norm() / b.norm()) for a, b in zip(own, exact, strict=True))
        for name, own in results.items()
    }


def _both(built: CapsuleNetwork) -> dict[str, nn.Module]:
    return {"this": copy.deepcopy(built), "plain": Plain(copy.deepcopy(built))}


def _loss_and_gradients(built: nn.Module, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the loss [1] and all gradients [P] as float64 vectors."""
    loss = objective().loss(built, built(images), labels, (images,))
    loss.backward()
    gradients = [parameter.grad.double().flatten() for parameter in built.parameters() if parameter.grad is not None]
    return loss.detach().double().reshape(1), torch.cat(gradients)


def measure(name: str, size: int, own: bool, half: bool, compiled: bool, captured: bool) -> dict[str, Any]:
    """Time one step: milliseconds, images per second and peak memory."""
    # Free the memory of the previous variant.
    gc.collect()
    torch.cuda.empty_cache()
    torch._dynamo.reset()
    built: nn.Module = network() if own else Plain(network())
    images, labels = batch(size)
    margin = objective()
    fused = own or captured or None
    optimizer = torch.optim.AdamW(built.parameters(), 0.001, weight_decay=0.0, fused=fused, capturable=captured)

    def loss_of(images: Tensor, labels: Tensor) -> Tensor:
        # Cached casts would be allocated in the memory pool of the graph.
        with torch.autocast("cuda", torch.bfloat16, enabled=half, cache_enabled=not captured):
            lengths, capsules = built(images)
        return margin.loss(built, (lengths.float(), capsules.float()), labels, (images,))

    forward: Callable[[Tensor, Tensor], Tensor] = (
        torch.compile(loss_of, dynamic=False, mode=STRONGEST) if compiled else loss_of
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        forward(images, labels).backward()
        optimizer.step()

    side = bench.warmed_up(step, 3)
    # Exclude the workspaces that cuDNN allocated while it chose its algorithms.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    run: Callable[[], None] = step
    if captured:
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            step()
        run = graph.replay
    timed = bench.time_samples(run, calls=1, samples=SAMPLES)
    return {
        "variant": name,
        "batch": size,
        **timed,
        "images_per_second": size / timed["median_ms"] * 1e3,
        "peak_memory_gib": torch.cuda.max_memory_allocated() / 2**30,
    }


def parts(size: int) -> dict[str, dict[str, Any]]:
    """Time the parts of our step alone, forward and backward, each from replays of a CUDA graph."""
    built, updated = network(), network()
    images, labels = batch(size)
    settings = built.settings
    maps = torch.randn(size, settings.channels, 20, 20, device="cuda").to(memory_format=torch.channels_last)
    maps = maps.bfloat16().requires_grad_()
    vectors = torch.randn(size, len(built.weight), settings.primary_dim, device="cuda", requires_grad=True)
    capsules = torch.rand(size, CLASSES, settings.capsule_dim, device="cuda", requires_grad=True)
    mask = functional.one_hot(labels, CLASSES).float()
    built.decoder_dtype = torch.bfloat16
    optimizer = torch.optim.AdamW(updated.parameters(), 0.001, weight_decay=0.0, fused=True, capturable=True)
    for parameter in updated.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def trained(forward: Callable[[], Tensor]) -> Callable[[], None]:
        def run() -> None:
            for leaf in (maps, vectors, capsules, *built.parameters()):
                leaf.grad = None
            with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
                output = forward()
            output.float().sum().backward()

        return run

    functions = {
        "first convolution": trained(lambda: built.first_maps(images)),
        "second convolution": trained(lambda: built.primary_vectors(maps)),
        "votes and routing": trained(lambda: built.routed(vectors)),
        "reconstruction": trained(lambda: built.reconstruct(capsules, mask)),
        "optimiser": optimizer.step,
    }
    times = {}
    for name, function in functions.items():
        side = bench.warmed_up(function, 3)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            function()
        times[name] = bench.time_samples(graph.replay, calls=1, samples=SAMPLES)
    return times


def time_line(row: dict[str, Any]) -> str:
    """Format one line of the table; the spread is the interquartile range."""
    spread = row["high_quartile_ms"] - row["low_quartile_ms"]
    return (
        f"| {row['variant']} | {row['batch']} | {row['images_per_second']:.0f} | {row['median_ms']:.3f} "
        f"| {spread:.3f} | {row['n']} | {row['peak_memory_gib']:.2f} | {row['times_plain']:.2f} |"
    )


if __name__ == "__main__":
    command(main)()
