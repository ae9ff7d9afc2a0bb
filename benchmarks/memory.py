"""Peak GPU memory of a training step, beside plain PyTorch's: ``python -m benchmarks.memory [NETWORK ...]``.

this                     the network as it trains, by kernels where it has them
modules                  the same weights in PyTorch's own modules, one by one, as torchvision writes them: a dense
                         layer concatenates all earlier outputs of its block
modules, checkpointed    the same, where the backward pass computes again what a unit keeps: as torchvision's
                         ``memory_efficient`` does in DenseNets, and unit by unit in the others

A step is forward under bfloat16 autocast, cross entropy, backward, and SGD with Nesterov momentum, on the same random
images, channels-last. The peak is of the third step and counts weights, momentum and images; it is what PyTorch's
tensors hold, without what the allocator keeps in reserve. Losses of the first step are printed: they differ by
rounding alone. The step is not captured in a CUDA graph, whose memory depends on what is captured beside it.
"""

import argparse
import copy
import gc
import json
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import models
from cuda_ext import bench
from models.layers.dense import DenseLayer, ImageClassifier
from models.layers.fusing import by_modules
from reread.storage.errors import command, refuse_unknown
from reread.storage.files import write_json

STEPS = 3
SAMPLES = 10
VARIANTS = ("this", "modules", "modules, checkpointed")


@dataclass(frozen=True)
class Subject:
    """A network and the images of its step."""

    model: str
    network: Mapping[str, Any]
    batch: int
    pixels: int
    classes: int = 10

    def build(self) -> nn.Module:
        arrays = {"images": {"shape": [1, self.pixels, self.pixels, 3]}}
        about = {"name": "drawn", "kind": "image", "classes": list(range(self.classes)), "arrays": arrays}
        return models.build(self.model, self.network, about)


SUBJECTS = {
    "DenseNet-BC-100-12": Subject("densenet", {"depth": 100, "growth_rate": 12}, 512, 32),
    "DenseNet-121": Subject("densenet_imagenet", {"depth": "121"}, 64, 224, 14),
    "ResNet-18": Subject("resnet18", {}, 512, 32),
    "pre-activation ResNet-164": Subject("preresnet", {"depth": 164, "block": "bottleneck"}, 256, 32),
    "WRN-28-10": Subject("wide_resnet", {"depth": 28, "widening": 10}, 256, 32),
    "ResNeXt-29, 8x64d": Subject("resnext", {"depth": 29, "cardinality": 8, "base_width": 64}, 128, 32),
    "fastnet": Subject("fastnet", {}, 1000, 32),
    "fastnet, ReLU": Subject("fastnet", {"activation": {"name": "relu"}}, 1000, 32),
}


class DenseModules(nn.Module):
    """A DenseNet with the weights of ``network`` whose layers keep a list of outputs, as torchvision's does."""

    def __init__(self, network: ImageClassifier, checkpointed: bool) -> None:
        super().__init__()
        self.network = network
        self.checkpointed = checkpointed

    def forward(self, images: Tensor) -> Tensor:
        x, features = images, list[Tensor]()
        for module in self.network.body:
            if isinstance(module, DenseLayer):
                features = features or [x]
                features.append(module.convolution(self._bottleneck(module.bottleneck, features)))
                continue
            if features:
                x, features = torch.cat(features, dim=1), []
            x = module(x)
        logits: Tensor = self.network.classifier(x.mean(dim=(2, 3)))
        return logits

    def _bottleneck(self, bottleneck: nn.Module, features: list[Tensor]) -> Tensor:
        def joined(*some: Tensor) -> Tensor:
            output: Tensor = bottleneck(torch.cat(some, dim=1))
            return output

        return checkpoint(joined, *features, use_reentrant=False) if self.checkpointed else joined(*features)


class Checkpointed(nn.Module):
    """A unit whose activations are computed again in the backward pass."""

    def __init__(self, unit: nn.Module) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = checkpoint(self.unit, x, use_reentrant=False)
        return output


def of_modules(network: nn.Module, checkpointed: bool) -> nn.Module:
    """Return a network with the weights of ``network`` in PyTorch's own modules; run it within ``by_modules``."""
    network = copy.deepcopy(network)
    if isinstance(network, ImageClassifier) and any(isinstance(module, DenseLayer) for module in network.modules()):
        return DenseModules(network, checkpointed)
    if checkpointed:
        units: Any = network.blocks if hasattr(network, "blocks") else network.body
        for name, unit in list(units.named_children()):
            setattr(units, name, Checkpointed(unit))
    return network


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.memory", description=__doc__.split("\n\n")[0])
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"which: {', '.join(SUBJECTS)} (default: all)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    refuse_unknown(arguments.networks, SUBJECTS, "the arguments")
    bench.refuse_without_kernels()
    torch.backends.cudnn.benchmark = True
    measured: dict[str, Any] = {"environment": bench.environment(), "results": []}
    print("| network | variant | batch | peak GiB | of modules | images/s | first loss |")
    print(f"|{'---|' * 7}")
    for name in arguments.networks or SUBJECTS:
        rows = [measure(SUBJECTS[name], variant) for variant in VARIANTS]
        for row in rows:
            share = row["peak_bytes"] / rows[1]["peak_bytes"]
            measured["results"].append({"network": name, **row, "share_of_modules": share})
            print(line(name, row, share), flush=True)
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def measure(subject: Subject, variant: str) -> dict[str, Any]:
    """Measure one variant of a network, alone on the GPU: the peak of its third step, and its pace."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    network = subject.build()
    if variant != "this":
        network = of_modules(network, checkpointed=variant.endswith("checkpointed"))
    network = network.train().to("cuda", memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(subject.batch, 3, subject.pixels, subject.pixels, device="cuda")
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(subject.classes, (subject.batch,), device="cuda")
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(trained, 0.001, momentum=0.9, nesterov=True, fused=True)
    losses = []

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = functional.cross_entropy(network(images).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())

    with nullcontext() if variant == "this" else by_modules():
        for _ in range(STEPS - 1):
            step()
        torch.cuda.synchronize()
        # What cuDNN took to choose its algorithms.
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = torch.cuda.max_memory_allocated()
        timed = bench.time_samples(step, calls=1, samples=SAMPLES)
    return {
        "variant": variant,
        "batch": subject.batch,
        "peak_bytes": peak,
        "images_per_second": subject.batch / timed["median_ms"] * 1e3,
        "first_loss": losses[0].item(),
    }


def line(name: str, row: Mapping[str, Any], share: float) -> str:
    return (
        f"| {name} | {row['variant']} | {row['batch']} | {row['peak_bytes'] / 2**30:.2f} | {share:.0%} "
        f"| {row['images_per_second']:,.0f} | {row['first_loss']:.4f} |"
    )


if __name__ == "__main__":
    command(main)()
