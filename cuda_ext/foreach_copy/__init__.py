"""Copies of many tensors by one launch, as ``torch._foreach_copy_``.

PyTorch's takes a launch per dtype, of few large blocks. A copy of each tensor by itself costs a step 2 us per tensor.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from cuda_ext.library import runs
from cuda_ext.operation import define


def foreach_copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy each of ``sources`` to its target, in place.

    - ``targets``, ``sources``: of any dtypes, strides and devices; each target has its source's shape.

    Those on the GPU of the first target take one launch, where dtype and strides are their source's and memory has no
    gaps; the others take ``Tensor.copy_``.
    Raises ValueError, naming what came, for anything else.

    >>> targets = [torch.zeros(2), torch.zeros((), dtype=torch.int64)]
    >>> foreach_copy(targets, [torch.tensor([1.0, 2.0]), torch.tensor(3)])
    >>> targets
    [tensor([1., 2.]), tensor(3)]
    """
    if targets or sources:
        torch.ops.reread_kernels.foreach_copy(targets, sources)


def reference(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Equals ``Tensor.copy_`` of each."""
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def check(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Refuse what neither the kernel nor the reference takes."""
    if len(targets) != len(sources):
        raise ValueError(f"foreach_copy takes as many targets as sources, got {len(targets)} and {len(sources)}")
    for target, source in zip(targets, sources, strict=True):
        if target.shape != source.shape:
            raise ValueError(
                f"foreach_copy takes targets of their source's shape, got {tuple(target.shape)} for "
                f"{tuple(source.shape)}"
            )


def _run(targets: list[Tensor], sources: list[Tensor]) -> None:
    check(targets, sources)
    # Bytes are copied, of whatever dtype.
    if runs("foreach_copy", targets[0].device, torch.uint8):
        torch.ops.reread_kernels_compiled.foreach_copy(targets, sources)
    else:
        reference(targets, sources)


define("foreach_copy(Tensor(a!)[] targets, Tensor[] sources) -> ()", _run, check)
