"""Loss and correctness of logits."""

from torch import Tensor
from torch.nn import functional


def loss(logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
    """Mean loss of logits [n, K]: cross entropy for target int64 [n], binary cross entropy for float32 [n, K]."""
    if target.ndim == 1:
        return functional.cross_entropy(logits, target, label_smoothing=label_smoothing)
    smooth = target * (1 - label_smoothing) + label_smoothing / 2
    return functional.binary_cross_entropy_with_logits(logits, smooth)


def correct(logits: Tensor, target: Tensor) -> Tensor:
    """Which rows (bool [N]) or, with several labels, which entries (bool [N, K], cut at one half) are right."""
    return logits.argmax(dim=1) == target if target.ndim == 1 else (logits > 0) == target.bool()
