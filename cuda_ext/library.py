"""The library of compiled kernels: loaded once, when first needed, if it fits this PyTorch and this GPU.

Where it does not fit, each operation runs its reference and warns once with ``ReferenceWarning``; in strict mode it
refuses instead. Both messages name the reason and the command that fixes it. Where a GPU runs only some operations,
``kernels`` names the others. Nothing here compiles anything.
"""

import ctypes
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_ext import build
from cuda_ext.errors import KernelError

# Bytes of shared memory that a block of an operation's largest kernel takes, where some GPU that the library serves may
# have less: sm_80 has 166,912, sm_86, sm_89 and sm_120 have 101,376, sm_90 and sm_100 have 232,448.
SHARED_MEMORY = {
    # attention_pooling/kernels.cuh: needed_shared_memory of each class of widths.
    "attention_pooling of half precision to 64 wide": 41_984,
    "attention_pooling of half precision to 104 wide": 85_824,
    "attention_pooling of half precision to 128 wide": 99_840,
    "attention_pooling of float32 to 64 wide": 93_008,
    "attention_pooling of float32 to 104 wide": 161_168,
    "attention_pooling of float32 to 128 wide": 210_256,
}


class ReferenceWarning(UserWarning):
    """An operation runs its reference in PyTorch instead of its kernel."""


_strict = False
_warned: set[str] = set()


def strict(on: bool) -> None:
    """Refuse to run a reference in this process (True), or allow it (False, as at the start)."""
    global _strict
    _strict = on


def kernel(name: str, x: Tensor, variant: str | None = None) -> Callable[..., Any] | None:
    """The compiled operation ``name`` for tensors like ``x``, or None if its reference must run.

    variant: the entry of SHARED_MEMORY that the call comes under, where it depends on dtype or shape.
    The reference comes with a warning, in strict mode with KernelError; but not that of float64 on a GPU, for which
    no operation has a kernel.
    """
    return getattr(torch.ops.reread_kernels_compiled, name).default if runs(name, x.device, x.dtype, variant) else None


def runs(name: str, device: torch.device, dtype: torch.dtype, variant: str | None = None) -> bool:
    """Return whether the compiled operation runs for tensors of the dtype on the device; else warn or refuse."""
    reason = unfit(device) or lacks_shared_memory(variant or name, device)
    if reason is None:
        return dtype != torch.float64
    run_reference(name, reason)
    return False


def run_reference(name: str, reason: str) -> None:
    """Warn once that ``name`` runs its reference, and why; KernelError in strict mode."""
    if _strict:
        raise KernelError(f"{name} has no kernel to run and strict mode refuses its reference: {reason}")
    if name not in _warned:
        _warned.add(name)
        warnings.warn(f"{name} runs its reference in PyTorch: {reason}", ReferenceWarning, stacklevel=3)


def kernels(device: torch.device) -> str:
    """Which implementation runs on ``device``, for a run's record.

    ``extension KEY``, followed by ``; compiled for sm_80, ...`` where the library is not compiled for every GPU of
    ``build.ARCHITECTURES``, and by ``; reference: NAME, ...`` where the GPU cannot run some of the operations; or
    ``reference (reason)``.
    """
    reason = unfit(device)
    if reason is not None:
        return f"reference ({reason})"
    lacking = [name for name in SHARED_MEMORY if lacks_shared_memory(name, device)]
    about: Any = build.built()
    some = "" if about["architectures"] == build.capabilities() else f"; compiled for {_named(about['architectures'])}"
    return f"extension {about['sources']}{some}" + (f"; reference: {', '.join(lacking)}" if lacking else "")


def implementation(record: str) -> str:
    """Return what ``kernels`` says without the library's key and the reason: ``extension; compiled for sm_90``."""
    return re.sub(r"^(extension) [0-9a-f]+|^(reference) \(.*\)$", r"\1\2", record)


def _named(architectures: Sequence[Sequence[int]]) -> str:
    return ", ".join(f"sm_{major}{minor}" for major, minor in architectures)


@functools.cache
def unfit(device: torch.device) -> str | None:
    """Why no kernel can run on ``device``, with the command that fixes it; None if the library is loaded and fits."""
    if device.type != "cuda":
        return f"the tensors are on the {device.type}: move them to a GPU with .to('cuda')"
    if torch.version.cuda is None:
        return "this PyTorch is the CPU build: run `pip install torch` from an index with CUDA builds"
    about = build.built()
    # A wheel contains the library without the sources.
    checkout = bool(build.kernel_sources())
    if about is None:
        return f"the library is not built: {build.remedy(checkout)}"
    if "ptx" not in about or (checkout and about["sources"] != build.source_key()):
        return f"the library was built from other sources: {build.remedy(checkout)}"
    # nvcc's runtime is linked into the library.
    if about["nvcc"].split(".")[0] != torch.version.cuda.split(".")[0]:
        return (
            f"the library was compiled by nvcc {about['nvcc']} and PyTorch {torch.__version__} has CUDA "
            f"{torch.version.cuda}, another major version: {build.remedy(checkout)}"
        )
    capability = torch.cuda.get_device_capability(device)
    if not runs_on(about["architectures"], about["ptx"], capability):
        return (
            f"{torch.cuda.get_device_name(device)} is sm_{capability[0]}{capability[1]} and the library holds "
            f"{_named(about['architectures'])}: {build.remedy_for_gpu(checkout)}"
        )
    return _load(build.BUILT / about["file"])


def runs_on(architectures: Sequence[Sequence[int]], ptx: Sequence[int], capability: tuple[int, int]) -> bool:
    """Return whether a library with machine code for ``architectures`` and PTX of ``ptx`` serves a GPU.

    Machine code serves its major version from its minor version up, PTX all later GPUs, for which the driver compiles
    it. What Hopper has and the PTX's GPU had not then stays unused: common/launch.cuh asks what the code was compiled
    for.
    """
    served = any(major == capability[0] and minor <= capability[1] for major, minor in architectures)
    return served or tuple(ptx) <= capability


@functools.cache
def has_warpgroups(device: torch.device) -> bool:
    """Return whether kernels run on ``device`` that multiply by warpgroups (common/wgmma.cuh).

    They are in code for sm_90a, which only a GPU of that very capability runs: Hopper.
    """
    if unfit(device) is not None:
        return False
    about: Any = build.built()
    return torch.cuda.get_device_capability(device) == (9, 0) and [9, 0] in about["architectures"]


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
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin  # type: ignore[attr-defined]


@functools.cache
def _load(path: Path) -> str | None:
    """Load the library; returns why it would not, or None."""
    try:
        # It names no CUDA part of PyTorch to link with (see build.py): that one's symbols are made known to it here.
        ctypes.CDLL(str(build.torch_folder() / "lib" / "libtorch_cuda.so"), mode=ctypes.RTLD_GLOBAL)
        torch.ops.load_library(str(path))
    except OSError as error:
        first = str(error).splitlines()[0]
        remedy = build.remedy(bool(build.kernel_sources()))
        return f"the library does not load with PyTorch {torch.__version__} ({first}): {remedy}"
    return None
