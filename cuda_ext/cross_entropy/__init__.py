"""Cross entropy with smoothed labels, as ``torch.nn.functional.cross_entropy``, with its gradient in the same kernel.

Source: Szegedy et al., Rethinking the Inception Architecture, CVPR 2016, section 7 (label smoothing).

PyTorch launches some fifteen kernels forward and ten backward, of one to three microseconds each, whatever their size.
Here one launch computes loss and gradient, a second one adds the losses of several blocks, and the backward pass
multiplies the gradient.

Shape legend: n rows, K classes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cuda_ext.library import kernel
from cuda_ext.operation import define

DTYPES = (torch.float64, torch.float32)
# Up to these the kernel was faster than PyTorch's operations. One warp reads a row, however many classes it has.
MOST_SCORES, MOST_CLASSES = 2**20, 2**10


def cross_entropy(scores: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Return the mean over the rows of their cross entropy, [], in the dtype of the scores.

    - ``scores``: float32 or float64 [n, K], not yet normalised.
    - ``targets``: int64 [n], from 0 to K - 1. Any other is an error on a CPU and stops the program on a GPU, -100 too:
      a row that PyTorch leaves out by default.
    - ``label_smoothing``: the share of a label, 0 to 1, that is spread over all classes.

    The gradient is that of the scores, and has none itself. More than 2^20 scores or 1024 classes, no scores, and
    float64 are computed by PyTorch's operations.
    Raises ValueError, naming what came, for anything else.

    >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0]], requires_grad=True)
    >>> loss = cross_entropy(scores, torch.tensor([0, 0]), label_smoothing=0.1)
    >>> loss.detach()
    tensor(0.7451)
    >>> loss.backward()
    >>> scores.grad
    tensor([[-0.0346,  0.0346],
            [-0.3405,  0.3405]])
    """
    return torch.ops.reread_kernels.cross_entropy(scores, targets, label_smoothing)[0]


def reference(scores: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """Equals ``torch.nn.functional.cross_entropy``, and its gradient as autograd has it, [n, K]."""
    loss = functional.cross_entropy(scores, targets, label_smoothing=label_smoothing)
    wanted = torch.zeros_like(scores).scatter_(1, targets.unsqueeze(1), 1 - label_smoothing)
    return loss, (scores.softmax(dim=1) - wanted - label_smoothing / scores.shape[1]) / scores.shape[0]


def check(scores: Tensor, targets: Tensor, label_smoothing: float) -> None:
    """Refuse what the kernel does not take."""
    if scores.dtype not in DTYPES or targets.dtype != torch.int64:
        raise ValueError(
            f"cross_entropy takes scores of float32 or float64 and targets of int64, got {scores.dtype} and "
            f"{targets.dtype}"
        )
    if scores.ndim != 2 or not scores.shape[1] or targets.shape != scores.shape[:1]:
        raise ValueError(
            f"cross_entropy takes scores [n, K] and targets [n], got {tuple(scores.shape)} and {tuple(targets.shape)}"
        )
    if scores.device != targets.device:
        raise ValueError(
            f"cross_entropy takes scores and targets on one device, got {scores.device} and {targets.device}"
        )
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy takes label_smoothing from 0 to 1, got {label_smoothing}")


def _run(scores: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    check(scores, targets, label_smoothing)
    fits = 0 < scores.numel() <= MOST_SCORES and scores.shape[1] <= MOST_CLASSES
    run = kernel("cross_entropy", scores) if fits else None
    return (run or reference)(scores, targets, label_smoothing)


def _shape(scores: Tensor, targets: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    check(scores, targets, label_smoothing)
    return scores.new_empty(()), torch.empty_like(scores, memory_format=torch.contiguous_format)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, slope = output
    ctx.mark_non_differentiable(slope)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(slope)


def _backward(ctx: Any, gradient: Tensor | None, _: None) -> tuple[Tensor | None, None, None]:
    if torch.is_grad_enabled():
        raise RuntimeError("cross_entropy has no second derivative: call its backward pass without create_graph=True")
    (slope,) = ctx.saved_tensors
    return None if gradient is None else slope * gradient, None, None


define(
    "cross_entropy(Tensor scores, Tensor targets, float label_smoothing) -> (Tensor, Tensor)",
    _run,
    _shape,
    backward=_backward,
    setup_context=_setup_context,
)
