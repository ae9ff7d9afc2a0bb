"""Cross entropy's cases: those that the benchmark times, and small odd ones that compute-sanitizer watches."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.bench import relative_error
from cuda_ext.case import Case, begin, compiled, forward_and_backward_of
from cuda_ext.cross_entropy import cross_entropy

SMOOTHING = 0.1
LARGEST_ERROR = 1e-6
# Rows and classes.
SIZES = ((64, 5), (1024, 20), (512, 100))


def bench_cases() -> Iterator[Case]:
    for size in SIZES:
        yield _case(*size)


def _case(rows: int, classes: int) -> Case:
    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return *drawn(rows, classes), torch.ones((), device="cuda")

    def ours(scores: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(scores, targets, SMOOTHING)

    def plain(scores: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(scores, targets, label_smoothing=SMOOTHING)

    peers = {name: forward_and_backward_of(peer) for name, peer in {"PyTorch": plain, **compiled(plain)}.items()}
    return Case(
        "cross_entropy",
        f"{rows} x {classes}, forward and backward",
        torch.float32,
        inputs,
        forward_and_backward_of(ours),
        peers,
        forward_and_backward_of(plain),
        8 * rows * (classes + 1),
    )


def drawn(rows: int, classes: int) -> tuple[Tensor, Tensor]:
    scores = (3 * torch.randn(rows, classes, device="cuda")).requires_grad_()
    return scores, torch.randint(classes, (rows,), device="cuda")


def exercise() -> None:
    """Run the kernels at numbers of rows and classes that reach every branch, and compare with float64."""
    for rows, classes in [(1, 1), (3, 2), (64, 5), (130, 8), (40, 9), (33, 32), (7, 33), (1300, 100)]:
        for smoothing in (0.0, SMOOTHING):
            begin("cross_entropy", rows, classes, smoothing)
            scores, targets = drawn(rows, classes)
            loss = cross_entropy(scores, targets, smoothing)
            loss.backward()
            # On the CPU: the sanitizer would watch PyTorch's kernels too.
            wide = scores.detach().cpu().double().requires_grad_()
            exact = functional.cross_entropy(wide, targets.cpu(), label_smoothing=smoothing)
            exact.backward()
            computed: Any
            expected: Any
            for computed, expected in ((loss, exact), (scores.grad, wide.grad)):
                # A single class has a loss and gradients of 0.
                if classes > 1 and relative_error(computed.cpu(), expected) > LARGEST_ERROR:
                    raise AssertionError(f"cross_entropy errs by {relative_error(computed.cpu(), expected)} at {rows}")
