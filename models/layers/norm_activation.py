"""Batch norm and activation, as one operation where a kernel computes both.

cuda_ext/batch_norm_activation runs on a GPU with the library of cuda_ext/ built, and for an activation that names its
kernel (models/activations), eager, compiled and exported. Otherwise the modules run one by one.

Shape legend: N images, C channels, H x W pixels.
"""

from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional

from cuda_ext import batch_norm_activation as fused
from models.activations import make_activation
from models.layers.fusing import has_kernel
from reread.storage.settings import Tagged


class NormActivation(nn.Module):
    """Batch norm and activation of ``channels``: x [N, C, H, W] -> the same shape."""

    def __init__(self, channels: int, activation: Tagged) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.activate = make_activation(activation, channels)

    @property
    def uses_kernels(self) -> bool:
        return self.activate.kernel is not None

    def forward(self, x: Tensor) -> Tensor:
        return norm_activation(self.norm, self.activate, x)


def norm_activation(
    norm: nn.BatchNorm2d,
    activate: nn.Module | None,
    x: Tensor,
    statistics: tuple[Tensor, Tensor] | None = None,
    pooled: bool = False,
) -> Tensor:
    """Compute activate(norm(x)), or the norm alone, by the kernel where there is one.

    statistics: the mean and variance of x, where they are known: the kernel does not compute them again. pooled: the
    result is then pooled, as by ``nn.AvgPool2d(2)``.
    """
    if not fuses(x, activate, [norm]):
        y = norm(x) if activate is None else activate(norm(x))
        return functional.avg_pool2d(y, 2) if pooled else y
    if norm.training:
        norm.num_batches_tracked.add_(1)  # type: ignore[union-attr]
    return fused.batch_norm_activation(
        x,
        norm.weight,
        norm.bias,
        norm.running_mean,
        norm.running_var,
        training=norm.training,
        momentum=norm.momentum,  # type: ignore[arg-type]
        epsilon=norm.eps,
        activation=kernel_of(activate),  # type: ignore[arg-type]
        beta=trained_beta(activate),
        pooled=pooled,
        statistics=statistics,
    )


def fuses(x: Tensor, activate: nn.Module | None, norms: Iterable[nn.Module]) -> bool:
    """Return whether each of ``norms`` runs with ``activate`` as one kernel on the device of ``x``."""
    return kernel_of(activate) is not None and all(map(_is_plain, norms)) and has_kernel("batch_norm_activation", x)


def kernel_of(activate: nn.Module | None) -> str | None:
    """Return the name under which the kernels compute the activation, or none; None where they do not."""
    return "none" if activate is None else getattr(activate, "kernel", None)


def _is_plain(norm: nn.Module) -> bool:
    """Return whether the kernel computes what ``norm`` does.

    It does not synchronise statistics between processes (``nn.SyncBatchNorm``), and takes a weight, running statistics
    and a constant momentum.
    """
    return type(norm) is nn.BatchNorm2d and norm.affine and norm.track_running_stats and norm.momentum is not None


def trained_beta(activate: nn.Module | None) -> Tensor | None:
    return getattr(activate, "beta", None)
