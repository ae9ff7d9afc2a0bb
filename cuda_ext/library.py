"""The library of compiled kernels: loaded once, when first needed, if it fits this PyTorch and this GPU.

Where it does not fit, each operation runs its reference and warns once with ``ReferenceWarning``; in strict mode it
refuses instead. Both messages name the reason and the command that fixes it. Nothing here compiles anything.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

from cuda_ext import build
from storage.errors import InputError


class ReferenceWarning(UserWarning):
    """An operation runs its reference in PyTorch instead of its kernel."""


class KernelError(InputError):
    """Strict mode: an operation that would run its reference is refused."""


_strict = False
_warned: set[str] = set()


def strict(on: bool) -> None:
    """Refuse to run a reference in this process (True), or allow it (False, as at the start)."""
    global _strict
    _strict = on


def kernel(name: str, device: torch.device) -> Callable | None:
    """The compiled operation ``name`` for tensors on ``device``, or None, with a warning, if its reference must run.

    Strict mode raises KernelError in place of the warning.
    """
    reason = unfit(device)
    if reason is None:
        return getattr(torch.ops.cuda_ext_kernels, name).default
    if _strict:
        raise KernelError(f"{name} has no kernel to run and strict mode refuses its reference: {reason}")
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"{name} runs its reference in PyTorch: {reason}", ReferenceWarning, stacklevel=2)
    return None


def kernels(device: torch.device) -> str:
    """Which implementation runs on ``device``, for a run's record: ``extension KEY`` or ``reference (reason)``."""
    reason = unfit(device)
    return f"extension {build.built()['sources']}" if reason is None else f"reference ({reason})"


@functools.cache
def unfit(device: torch.device) -> str | None:
    """Why no kernel can run on ``device``, with the command that fixes it; None if the library is loaded and fits."""
    if device.type != "cuda":
        return f"the tensors are on the {device.type}: move them to a GPU with .to('cuda')"
    if torch.version.cuda is None:
        return "this PyTorch is the CPU build: run `pip install torch` from an index with CUDA builds"
    found = build.built()
    if found is None:
        return "the library is not built: run `make ext`"
    if found["sources"] != build.source_key():
        return "the library was built from other sources: run `make ext`"
    capability = torch.cuda.get_device_capability(device)
    if not runs_on(found["architectures"], capability):
        have = ", ".join(f"sm_{major}{minor}" for major, minor in found["architectures"])
        return (
            f"{torch.cuda.get_device_name(device)} is sm_{capability[0]}{capability[1]} and the library holds {have}: "
            f"add it to ARCHITECTURES in cuda_ext/build.py and run `make ext`"
        )
    return _load(build.BUILT / found["file"])


def runs_on(architectures: list[list[int]], capability: tuple[int, int]) -> bool:
    """Machine code serves its major version from its minor version up; the last one's PTX serves everything later."""
    return any(major == capability[0] and minor <= capability[1] for major, minor in architectures) or tuple(
        architectures[-1]
    ) <= tuple(capability)


@functools.cache
def _load(path: Path) -> str | None:
    """Load the library; returns why it would not, or None."""
    try:
        # It names no CUDA part of PyTorch to link with (see build.py): that one's symbols are made known to it here.
        ctypes.CDLL(str(build.torch_folder() / "lib" / "libtorch_cuda.so"), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(path))
    except OSError as error:
        first = str(error).splitlines()[0]
        return f"the library does not load with PyTorch {torch.__version__} ({first}): run `make ext`"
    return None
