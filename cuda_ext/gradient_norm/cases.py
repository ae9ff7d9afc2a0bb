"""The gradient norm's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator

import torch
from torch import Tensor

from cuda_ext.adamw.cases import HAN, Shapes, densenet
from cuda_ext.bench import relative_error
from cuda_ext.case import Case, begin, compiled
from cuda_ext.gradient_norm import gradient_norm

LARGEST_ERROR = 1e-6


def bench_cases() -> Iterator[Case]:
    yield _case(f"HAN's {len(HAN)} tensors", HAN)
    shapes = list(densenet())
    yield _case(f"DenseNet-121's {len(shapes)} tensors", shapes)


def _case(name: str, shapes: Shapes) -> Case:
    def inputs() -> tuple[Tensor, ...]:
        return tuple(torch.randn(shape, device="cuda") for shape in shapes)

    def ours(*tensors: Tensor) -> Tensor:
        return gradient_norm(tensors)

    def plain(*tensors: Tensor) -> Tensor:
        return torch.nn.utils.get_total_norm(tensors)

    numbers = sum(torch.Size(shape).numel() for shape in shapes)
    peers = {"PyTorch": plain, **(compiled(plain) if shapes is HAN else {})}
    return Case("gradient_norm", name, torch.float32, inputs, ours, peers, plain, 4 * numbers)


def exercise() -> None:
    """Run the kernels at sizes, counts and alignments that reach every branch, and compare with float64."""
    many = [(1 + i % 5,) for i in range(700)]
    for shapes in ([(1,)], [(0,)], [(0,), (5, 3), ()], [(8192,), (8191,), (64, 300)], many):
        for offset in (0, 1):
            begin("gradient_norm", len(shapes), offset)
            tensors = [
                torch.randn(torch.Size(shape).numel() + offset, device="cuda")[offset:].view(shape) for shape in shapes
            ]
            exact = torch.nn.utils.get_total_norm([tensor.cpu().double() for tensor in tensors])
            if relative_error(gradient_norm(tensors).cpu(), exact) > LARGEST_ERROR:
                raise AssertionError(f"gradient_norm errs at {len(shapes)} tensors, offset {offset}")
