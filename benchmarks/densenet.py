"""Time DenseNet's training step against torchvision's, eager and compiled: ``python -m benchmarks.densenet``.

The networks are DenseNet-BC-100-12 (32 pixels, batch 512) and DenseNet-121 (224 pixels, batch 128), channels-last under
bfloat16 autocast. A step is forward, cross entropy, backward, and fused SGD with Nesterov momentum, as training has it.
Our step is captured in a CUDA graph, because it is launch-bound otherwise; ``--batch`` times it with other numbers of
images too. torchvision's step is timed eager and compiled, as torch.compile comes and in its strongest mode; each is
launched kernel by kernel and captured in a CUDA graph. All steps use the same random images.

Before timing, losses and gradients of the fused blocks are compared with those of the plain modules, in float32 on
small images. The comparison uses swish, because rounding flips gradients at the kink of ReLU.
"""

import argparse
import copy
import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import models
from cuda_ext import bench
from cuda_ext.case import STRONGEST
from models.layers import fusing
from reread.storage.errors import command, refuse_unknown
from reread.storage.files import write_json

SAMPLES = 20
PEERS = ("none", "eager", "compiled", "all")
# name: network, settings, batch, pixels, classes
STEPS: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "DenseNet-BC-100-12": ("densenet", {"depth": 100, "growth_rate": 12}, 512, 32, 10),
    "DenseNet-121": ("densenet_imagenet", {"depth": "121"}, 128, 224, 14),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.densenet", description="Time DenseNet's training step.")
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"which: {', '.join(STEPS)} (default: both)")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    parser.add_argument(
        "--peers",
        choices=PEERS,
        default="all",
        help="torchvision's variants, up to these; compiling takes minutes (default: all, with the strongest mode)",
    )
    parser.add_argument("--batch", type=int, nargs="*", default=[], help="images of our step, beside the usual number")
    arguments = parser.parse_args()
    refuse_unknown(arguments.networks, STEPS, "the arguments")
    bench.refuse_without_kernels()
    torch.backends.cudnn.benchmark = True
    names = arguments.networks or list(STEPS)
    measured: dict[str, Any] = {"environment": bench.environment(), "equality": [], "results": []}
    print("| network | loss: difference | gradients: difference | fused from float64 | modules from float64 |")
    print(f"|{'---|' * 5}")
    for name in names:
        measured["equality"].append(equality(name))
        print(equality_line(measured["equality"][-1]), flush=True)
    print("\n| network | variant | batch | images/s | ms | spread | n | peak GiB |")
    print(f"|{'---|' * 8}")
    for name in names:
        for row in times(name, arguments.peers, arguments.batch):
            measured["results"].append(row)
            print(time_line(row), flush=True)
            if arguments.json:  # A run that is cut keeps what it has measured.
                write_json(arguments.json, measured)
    print(json.dumps(measured))


def network(name: str, **settings: Any) -> nn.Module:
    """Build the network of a step on the GPU, channels-last."""
    model, given, _, size, classes = STEPS[name]
    arrays = {"images": {"shape": [1, size, size, 3]}}
    description = {"name": "random", "kind": "image", "classes": list(range(classes)), "arrays": arrays}
    torch.manual_seed(0)
    built = models.build(model, {**given, **settings}, description)
    return channels_last(built)


def channels_last(built: nn.Module) -> nn.Module:
    return built.cuda().to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def batch(name: str, number: int | None = None, small: bool = False) -> tuple[Tensor, Tensor]:
    """Draw images float32 [N, 3, H, W], channels-last, and labels [N]; ``small``: 8 images of at most 64 pixels."""
    _, _, usual, size, classes = STEPS[name]
    number, size = (8, min(size, 64)) if small else (number or usual, size)
    images = torch.randn(number, 3, size, size, device="cuda").contiguous(memory_format=torch.channels_last)
    return images, torch.randint(classes, (number,), device="cuda")


def equality(name: str) -> dict[str, Any]:
    """Return the relative errors of loss and gradients: fused and plain against float64, and against each other."""
    built = network(name, activation={"name": "swish"})
    images, labels = batch(name, small=True)
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        fused, plain, exact = (
            _loss_and_gradients(built, images, labels, *how)
            for how in ((True, torch.float32), (False, torch.float32), (False, torch.float64))
        )
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    errors = {
        f"{part}_{kind}": float((a[i] - b[i]).norm() / b[i].norm())
        for kind, a, b in (("fused", fused, exact), ("modules", plain, exact), ("difference", fused, plain))
        for i, part in enumerate(("loss", "gradients"))
    }
    return {"network": name, **errors}


def _loss_and_gradients(
    built: nn.Module, images: Tensor, labels: Tensor, by_kernels: bool, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the loss [1] and all gradients [P] as float64 vectors."""
    built = copy.deepcopy(built).to(dtype)
    with fusing.by_modules(not by_kernels):
        loss = functional.cross_entropy(built(images.to(dtype)), labels)
    loss.backward()
    gradients = [parameter.grad.double().flatten() for parameter in built.parameters() if parameter.grad is not None]
    return loss.detach().double().reshape(1), torch.cat(gradients)


def times(name: str, peers: str, batches: list[int]) -> Iterator[dict[str, Any]]:
    """Yield one row per variant: images per second and peak memory."""
    for number in [*batches, STEPS[name][2]]:
        yield measure(name, "this, CUDA graph", network(name), captured=True, number=number)
    yield measure(name, "this", network(name), captured=False)
    if peers != "none":
        yield measure(name, "torchvision", torchvision_network(name), captured=False)
        yield measure(name, "torchvision, CUDA graph", torchvision_network(name), captured=True)
    if peers in ("compiled", "all"):
        modes = (None, STRONGEST) if peers == "all" else (None,)
        for mode, captured in itertools.product(modes, (False, True)):
            torch._dynamo.reset()
            compiled: Any = torch.compile(torchvision_network(name), dynamic=False, mode=mode)
            variant = (
                f"torchvision, torch.compile{', max-autotune' if mode else ''}{', CUDA graph' if captured else ''}"
            )
            try:
                row = measure(name, variant, compiled, captured)
            except RuntimeError as error:  # What cannot be captured is no reason to lose the rest.
                print(f"{variant} failed: {str(error).splitlines()[0]}", file=sys.stderr)
                continue
            yield row


def torchvision_network(name: str) -> nn.Module:
    """Build torchvision's DenseNet with the same layers, and the paper's stem for small images."""
    # Optional: the project does not depend on torchvision.
    import torchvision

    classes = STEPS[name][4]
    if name == "DenseNet-121":
        built = torchvision.models.densenet121(num_classes=classes)
    else:
        built = torchvision.models.DenseNet(12, (16, 16, 16), 24, num_classes=classes)
        built.features.conv0 = nn.Conv2d(3, 24, 3, padding=1, bias=False)
        built.features.norm0 = built.features.relu0 = built.features.pool0 = nn.Identity()
    return channels_last(built)


def measure(name: str, variant: str, built: nn.Module, captured: bool, number: int | None = None) -> dict[str, Any]:
    # Free the memory of the previous variant.
    gc.collect()
    torch.cuda.empty_cache()
    images, labels = batch(name, number)
    run = training_step(built, images, labels, captured)
    timed = bench.time_samples(run, calls=1, samples=SAMPLES)
    memory = torch.cuda.max_memory_allocated() / 2**30
    return {
        "network": name,
        "variant": variant,
        "batch": len(images),
        **timed,
        "images_per_second": len(images) / timed["median_ms"] * 1e3,
        "peak_memory_gib": memory,
        "gpu_state": bench.gpu_values(bench.GPU_STATE),
    }


def training_step(built: nn.Module, images: Tensor, labels: Tensor, captured: bool) -> Callable[[], None]:
    """Return the training step, warmed up; the peak of memory is counted from its last warm-up on."""
    optimizer = torch.optim.SGD(built.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, fused=True)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        # Cached casts would be allocated in the memory pool of the graph.
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=not captured):
            loss = functional.cross_entropy(built(images), labels)
        loss.backward()
        optimizer.step()

    side = bench.warmed_up(step, 3)
    # Exclude the workspaces that cuDNN allocated while it chose its algorithms.
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    if not captured:
        return step
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        step()

    def replay(_kept: tuple[Any, ...] = (built, optimizer, images, labels)) -> None:
        graph.replay()

    return replay


def equality_line(row: dict[str, Any]) -> str:
    cells = [row[key] for key in ("loss_difference", "gradients_difference", "gradients_fused", "gradients_modules")]
    return f"| {row['network']} | " + " | ".join(f"{cell:.1e}" for cell in cells) + " |"


def time_line(row: dict[str, Any]) -> str:
    """Format one line of the table; the spread is the interquartile range."""
    spread = row["high_quartile_ms"] - row["low_quartile_ms"]
    return (
        f"| {row['network']} | {row['variant']} | {row['batch']} | {row['images_per_second']:.0f} "
        f"| {row['median_ms']:.2f} | {spread:.2f} | {row['n']} | {row['peak_memory_gib']:.2f} |"
    )


if __name__ == "__main__":
    command(main)()
