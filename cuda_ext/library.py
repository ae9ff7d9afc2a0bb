"""The library of compiled kernels: loaded once, when first needed, if it fits this PyTorch and this GPU.

Where it does not fit, each operation runs its reference and warns once with ``ReferenceWarning``; in strict mode it
refuses instead. Both messages name the reason and the command that fixes it. Where a GPU runs only some operations,
``kernels`` names the others. Nothing here compiles anything.
"""

import ctypes
import functools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from cuda_ext import build
from cuda_ext.errors import KernelError

# The first GPUs with bulk copies, clusters and programmatic launch.
HOPPER = (9, 0)
# Bytes of shared memory that a block of an operation's largest kernel takes, where some GPU that the library serves may
# have less: sm_80 has 166,912, sm_86, sm_89 and sm_120 have 101,376, sm_90 and sm_100 have 232,448.
SHARED_MEMORY = {
    # gru_backward.cu: recur_back of 128 units in float32 with what goes out by bulk copies.
    "gru_forward": 118_784,
    "gru_backward": 118_784,
    # attention_pooling/kernels.cuh: BackwardShared of each class of widths.
    "attention_pooling of half precision to 64 wide": 87_984,
    "attention_pooling of half precision to 104 wide": 218_624,
    "attention_pooling of half precision to 128 wide": 109_936,
    "attention_pooling of float32 to 64 wide": 133_008,
    "attention_pooling of float32 to 104 wide": 154_288,
    "attention_pooling of float32 to 128 wide": 214_384,
}


class ReferenceWarning(UserWarning):
    """An operation runs its reference in PyTorch instead of its kernel."""


_strict = False
_warned: set[str] = set()


def strict(on: bool) -> None:
    """Refuse to run a reference in this process (True), or allow it (False, as at the start)."""
    global _strict
    _strict = on


def kernel(name: str, device: torch.device, variant: str | None = None) -> Callable | None:
    """The compiled operation ``name`` for tensors on ``device``, or None, with a warning, if its reference must run.

    variant: the entry of SHARED_MEMORY that the call comes under, where it depends on dtype or shape.
    Strict mode raises KernelError in place of the warning.
    """
    reason = unfit(device) or lacks_shared_memory(variant or name, device)
    if reason is None:
        return getattr(torch.ops.cuda_ext_kernels, name).default
    run_reference(name, reason)
    return None


def run_reference(name: str, reason: str) -> None:
    """Warn once that ``name`` runs its reference, and why; KernelError in strict mode."""
    if _strict:
        raise KernelError(f"{name} has no kernel to run and strict mode refuses its reference: {reason}")
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"{name} runs its reference in PyTorch: {reason}", ReferenceWarning, stacklevel=3)


def kernels(device: torch.device) -> str:
    """Which implementation runs on ``device``, for a run's record.

    ``extension KEY``, followed by ``; reference: NAME, ...`` where the GPU cannot run some of the operations, or
    ``reference (reason)``.
    """
    reason = unfit(device)
    if reason is not None:
        return f"reference ({reason})"
    lacking = [name for name in SHARED_MEMORY if lacks_shared_memory(name, device)]
    return f"extension {build.built()['sources']}" + (f"; reference: {', '.join(lacking)}" if lacking else "")


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
    # A wheel contains the library without the sources.
    if "ptx" not in found or (build.kernel_sources() and found["sources"] != build.source_key()):
        return "the library was built from other sources: run `make ext`"
    capability = torch.cuda.get_device_capability(device)
    if not runs_on(found["architectures"], found["ptx"], capability):
        have = ", ".join(f"sm_{major}{minor}" for major, minor in found["architectures"])
        return (
            f"{torch.cuda.get_device_name(device)} is sm_{capability[0]}{capability[1]} and the library holds {have}: "
            f"add it to ARCHITECTURES in cuda_ext/build.py and run `make ext`"
        )
    return _load(build.BUILT / found["file"])


def runs_on(architectures: Sequence[Sequence[int]], ptx: Sequence[int], capability: tuple[int, int]) -> bool:
    """Return whether a library with machine code for ``architectures`` and PTX of ``ptx`` serves a GPU.

    Machine code serves its major version from its minor version up. PTX serves later GPUs; but what was compiled for a
    GPU before HOPPER does not serve Hopper and later ones: the host code decides by the GPU what the device code does,
    and bulk copies and clusters were compiled out of it.
    """
    if any(major == capability[0] and minor <= capability[1] for major, minor in architectures):
        return True
    return tuple(ptx) <= capability and (tuple(ptx) >= HOPPER or capability < HOPPER)


def lacks_shared_memory(name: str, device: torch.device) -> str | None:
    """Return why a block of the operation's largest kernel does not fit the GPU; None where it does."""
    needed = SHARED_MEMORY.get(name, 0)
    if not needed or device.type != "cuda":
        return None
    allowed = _shared_memory(device)
    if needed <= allowed:
        return None
    gpu = torch.cuda.get_device_name(device)
    return f"{name} takes {needed:,} bytes of shared memory per block, and {gpu} has {allowed:,}"


@functools.cache
def _shared_memory(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin


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
