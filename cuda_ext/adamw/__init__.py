"""AdamW's step over all parameters at once, for ``torch.optim.AdamW``.

Source: Loshchilov and Hutter, Decoupled Weight Decay Regularization, ICLR 2019, algorithm 2, as PyTorch has it, of a
parameter p with gradient g at step t, rate r and weight decay w:

    p = p - r w p
    m = beta1 m + (1 - beta1) g
    v = beta2 v + (1 - beta2) g g
    p = p - r / (1 - beta1^t) m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)

PyTorch launches a kernel for each group of parameters, of few large blocks, and another to count the steps. Here all
groups are one launch, behind a short one that counts.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from cuda_ext.library import kernel
from cuda_ext.operation import FLOATS, define, refuse_mixed

DTYPES = FLOATS


def adamw(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    steps: Sequence[Tensor],
    rates: Sequence[float],
    weight_decays: Sequence[float],
    betas: tuple[float, float] = (0.9, 0.999),
    epsilon: float = 1e-8,
    norm: Tensor | None = None,
    largest_norm: float = 0.0,
    scale: Tensor | None = None,
    overflow: Tensor | None = None,
) -> None:
    """Update parameters, their means of the gradient (m) and of its square (v), and their steps, in place.

    - ``parameters``, ``gradients``, ``means``, ``squares``: float32, or any dtype that the reference takes; a
      parameter's four have equal sizes and strides, without gaps, on one device.
    - ``steps``: float32 [] on that device, how often each was updated before.
    - ``rates``, ``weight_decays``: numbers; a CUDA graph keeps those of its capture.
    - ``norm``: float32 [], of all gradients together, which then count as if clipped to ``largest_norm``; they stay as
      they are.
    - ``scale``: float32 [], by which gradients are divided first, and stored so.
    - ``overflow``: float32 []; where it is 1, nothing changes.

    All lists have an entry for each parameter. norm, scale and overflow are read on the device.
    Raises ValueError, naming what came, for anything else.

    >>> parameter, gradient = torch.tensor([1.0, -2.0]), torch.tensor([0.5, 0.0])
    >>> mean, square, step = torch.zeros(2), torch.zeros(2), torch.zeros(())
    >>> adamw([parameter], [gradient], [mean], [square], [step], [0.1], [0.01])
    >>> parameter
    tensor([ 0.8990, -1.9980])
    >>> mean, step
    (tensor([0.0500, 0.0000]), tensor(1.))
    """
    if parameters:
        torch.ops.reread_kernels.adamw(
            parameters, gradients, means, squares, steps, rates, weight_decays,
            *betas, epsilon, norm, largest_norm, scale, overflow,
        )  # fmt: skip


def reference(
    parameters: list[Tensor],
    gradients: list[Tensor] | tuple[Tensor, ...],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    rates: list[float],
    weight_decays: list[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    norm: Tensor | None,
    largest_norm: float,
    scale: Tensor | None,
    overflow: Tensor | None,
) -> None:
    """Equals ``torch.optim.AdamW(fused=True)`` of groups with these rates and weight decays.

    With a norm, behind ``torch.nn.utils.clip_grads_with_norm_``.
    """
    if norm is not None:
        if scale is not None:
            # An overflow leaves the gradients, too, as they are.
            by = scale if overflow is None else torch.where(overflow > 0, 1.0, scale)
            torch._foreach_div_(gradients, by)
            scale = None
        gradients = torch._foreach_mul(gradients, (largest_norm / (norm + 1e-6)).clamp(max=1.0))
    torch._foreach_add_(steps, 1)
    lists = list(zip(parameters, gradients, means, squares, steps, strict=True))
    settings = list(zip(rates, weight_decays, strict=True))
    for rate, weight_decay in dict.fromkeys(settings):
        group = [tensors for tensors, setting in zip(lists, settings, strict=True) if setting == (rate, weight_decay)]
        values, slopes, first, second, counts = map(list, zip(*group, strict=True))
        torch._fused_adamw_(
            values, slopes, first, second, [], counts,
            lr=rate, beta1=beta1, beta2=beta2, weight_decay=weight_decay, eps=epsilon, amsgrad=False, maximize=False,
            grad_scale=scale, found_inf=overflow,
        )  # fmt: skip
    if overflow is not None:
        torch._foreach_sub_(steps, [overflow] * len(steps))


def check(
    parameters: list[Tensor],
    gradients: list[Tensor],
    means: list[Tensor],
    squares: list[Tensor],
    steps: list[Tensor],
    rates: list[float],
    weight_decays: list[float],
    *_: float | Tensor | None,
) -> None:
    """Refuse what the kernel does not take; it compares strides itself."""
    lists: dict[str, list[Any]] = {"gradients": gradients, "means": means, "squares": squares}
    for name, given in (lists | {"steps": steps, "rates": rates, "weight_decays": weight_decays}).items():
        if len(given) != len(parameters):
            raise ValueError(f"adamw takes {name} of as many parameters, got {len(given)} and {len(parameters)}")
    refuse_mixed("adamw", "parameters", parameters)
    for name, given in lists.items():
        for parameter, tensor in zip(parameters, given, strict=True):
            if (tensor.shape, tensor.dtype, tensor.device) != (parameter.shape, parameter.dtype, parameter.device):
                raise ValueError(
                    f"adamw takes {name} of their parameter's shape, dtype and device, got {tuple(tensor.shape)} of "
                    f"{tensor.dtype} on {tensor.device} for {tuple(parameter.shape)} of {parameter.dtype} on "
                    f"{parameter.device}"
                )


def _run(parameters: list[Tensor], *others: Any) -> None:
    run = kernel("adamw", parameters[0])
    if run is None:
        check(parameters, *others)
        reference(parameters, *others)
        return
    try:
        run(parameters, *others)
    except RuntimeError:
        # The kernel checks all of this itself. Here it takes 50 us for 25 parameters, and a small step waits for its
        # host.
        check(parameters, *others)
        raise


define(
    "adamw(Tensor(a!)[] parameters, Tensor(b!)[] gradients, Tensor(c!)[] means, Tensor(d!)[] squares, "
    "Tensor(e!)[] steps, float[] rates, float[] weight_decays, float beta1, float beta2, float epsilon, "
    "Tensor? norm, float largest_norm, Tensor? scale, Tensor? overflow) -> ()",
    _run,
    check,
)
