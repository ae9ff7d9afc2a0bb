"""A kernel on managed memory that the host has written, by page faults and by a prefetch, as cases for a claim:

    python -m cuda_ext.pairs benchmarks.unified_memory "2^25, float32" "page faults" --output prefetch.jsonl

The example is a tutorial's (M. Harris, "Unified Memory for CUDA Beginners", NVIDIA Technical Blog, 2017): y = x + y of
two vectors in memory that the host and the GPU share, whose pages move to whoever touches them. Before each call the
host writes both vectors, which is not timed. What is timed:

this           the driver is asked to move both vectors to the GPU, then the kernel runs
page faults    the kernel runs, and each page is moved when it is first touched

The driver is called itself: its ``cuMemPrefetchAsync`` takes a device in every version, where that of CUDA's runtime
takes something else since CUDA 13.
"""

import ctypes
import functools
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cuda_ext.bench import refuse_without_gpu
from cuda_ext.case import Case
from cuda_ext.errors import KernelError

# The tutorial's, and one that takes longer than any launch.
SIZES = (2**20, 2**25)
ATTACH_GLOBAL = 1


def bench_cases() -> Iterator[Case]:
    for size in SIZES:
        inputs, name = partial(written, size), f"2^{size.bit_length() - 1}"
        peers = {"page faults": by_page_faults}
        moved = 3 * 4 * size
        yield Case(
            "unified_memory", name, torch.float32, inputs, by_prefetch, peers, torch.add, moved, before=write_on_host
        )


def written(size: int) -> tuple[Tensor, Tensor]:
    """Return two vectors in managed memory, as tensors of the CPU; they are kept until the process ends."""
    refuse_without_gpu()
    free, _ = torch.cuda.mem_get_info()
    if 2 * 4 * size > free // 2:
        raise KernelError(f"two vectors of {size} numbers take more than half of the GPU's free memory, {free:,} bytes")
    x, y = managed(size), managed(size)
    write_on_host(x, y)
    return x, y


def write_on_host(x: Tensor, y: Tensor) -> None:
    x.fill_(1.0)
    y.fill_(2.0)


def by_page_faults(x: Tensor, y: Tensor) -> Tensor:
    on_gpu(y).add_(on_gpu(x))
    torch.cuda.synchronize()
    return y


def by_prefetch(x: Tensor, y: Tensor) -> Tensor:
    prefetch(x)
    prefetch(y)
    return by_page_faults(x, y)


def managed(size: int) -> Tensor:
    """Return float32 numbers in managed memory, as a tensor of the CPU."""
    address = ctypes.c_uint64()
    call("cuMemAllocManaged", ctypes.byref(address), ctypes.c_size_t(4 * size), ctypes.c_uint(ATTACH_GLOBAL))
    assert address.value
    return torch.frombuffer((ctypes.c_float * size).from_address(address.value), dtype=torch.float32)


def on_gpu(x: Tensor) -> Tensor:
    """Return the same managed memory as a tensor of the GPU, without a copy."""
    about = {"shape": tuple(x.shape), "typestr": "<f4", "data": (x.data_ptr(), False), "version": 2}
    view: Any = type("Managed", (), {"__cuda_array_interface__": about})()
    return torch.as_tensor(view, device="cuda")


def prefetch(x: Tensor) -> None:
    """Ask for managed memory to be moved to the current GPU, in the order of the current stream."""
    device = ctypes.c_int()
    call("cuCtxGetDevice", ctypes.byref(device))
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    call("cuMemPrefetchAsync", ctypes.c_uint64(x.data_ptr()), ctypes.c_size_t(x.nbytes), device, stream)


@functools.cache
def driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: Any) -> None:
    """Call NVIDIA's driver; KernelError with the CUresult that is not 0."""
    if code := getattr(driver(), name)(*arguments):
        raise KernelError(f"{name} gave CUresult {code}: this GPU or its driver may not move managed memory on demand")
