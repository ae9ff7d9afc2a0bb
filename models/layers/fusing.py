"""Whether a layer runs as one kernel of cuda_ext/ or as PyTorch's modules."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from cuda_ext import library

_by_modules = False


@contextmanager
def by_modules(on: bool = True) -> Iterator[None]:
    """Run the modules one by one within the block, on a GPU too; tests compare the fused functions with them."""
    global _by_modules
    before, _by_modules = _by_modules, on
    try:
        yield
    finally:
        _by_modules = before


def has_kernel(operation: str, x: Tensor) -> bool:
    """Return whether ``operation`` of cuda_ext/ runs on a GPU for tensors like ``x``."""
    return x.device.type == "cuda" and not _by_modules and _compiled_for(operation, x.device, x.dtype)


def _compiled_for(operation: str, device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether the kernels run for tensors of the dtype on the device. A trace asks once."""
    return library.runs(operation, device, dtype)


# As torch.compiler.assume_constant_result does, which imports the compiler: that takes more than a second.
_compiled_for._dynamo_marked_constant = True  # type: ignore[attr-defined]
