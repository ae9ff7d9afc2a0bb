"""The device of a training process, how it computes there, and a record of the device and its software."""

import contextlib
import platform
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from cuda_ext import library
from reread.runtime.determinism import set_determinism
from reread.runtime.gpu_lease import acquire_gpus
from reread.storage.errors import InputError
from reread.storage.git import checkout
from reread.training.processes import SINGLE_PROCESS, Processes
from reread.training.settings import Settings

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@contextlib.contextmanager
def acquire_device(processes: Processes = SINGLE_PROCESS, runs_per_gpu: int = 1) -> Iterator[torch.device]:
    """Acquire the device of this process for the block: the CPU, or a GPU of its own.

    Several processes get a GPU each, or all of them wait. ``runs_per_gpu`` runs may share a GPU. InputError where a
    node has fewer GPUs than processes.
    """
    count = processes.local_world_size
    if not torch.cuda.is_available():
        yield torch.device("cpu")
        return
    if count > torch.cuda.device_count():
        raise InputError(f"{count} processes need a GPU each, and there are {torch.cuda.device_count()}: start fewer")
    first = processes.local_rank == 0
    with acquire_gpus(count, runs_per_gpu) if first else contextlib.nullcontext() as own:
        held = next(gpus for node, gpus in processes.gather((processes.node, own)) if node == processes.node and gpus)
        index = held[processes.local_rank]
        torch.cuda.set_device(index)
        yield torch.device("cuda", index)


def configure(settings: Settings) -> None:
    """Set threads, determinism and the precision of float32 for the whole process.

    Call it before the first work on a GPU.
    """
    torch.set_num_threads(settings.threads)
    if torch.get_num_interop_threads() != 1:  # may be set once in a process
        torch.set_num_interop_threads(1)
    set_determinism(settings.deterministic or not torch.cuda.is_available())
    set_float32_products(settings.amp)


def mixed_precision(settings: Settings, device: torch.device) -> torch.dtype | None:
    """Return the half-precision type of the forward pass, or None for float32 throughout.

    InputError for a precision that needs a GPU, where there is none.
    """
    if settings.amp not in ("auto", "off", "fp32") and device.type == "cpu":
        raise InputError(f"amp is {settings.amp}, and there is no GPU: set amp to auto, off or fp32")
    if settings.amp == "auto" and device.type == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability(device) >= (8, 0) else torch.float16
    return HALVES.get(settings.amp)


def set_float32_products(amp: str) -> None:
    """Set how a GPU multiplies float32 numbers: ``fp32`` exactly, ``tf32`` of 10 bits of fraction.

    Any other ``amp`` keeps PyTorch's default: convolutions in tf32, other products exactly.
    """
    torch.backends.cuda.matmul.allow_tf32 = amp == "tf32"
    torch.backends.cudnn.allow_tf32 = amp != "fp32"


@contextlib.contextmanager
def peak_memory(device: torch.device) -> Iterator[dict[str, int]]:
    """Measure the block: the mapping has ``peak_memory_bytes``, the most that tensors held on the GPU, at its end.

    On a CPU it stays empty.
    """
    measured: dict[str, int] = {}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    yield measured
    if device.type == "cuda":
        measured["peak_memory_bytes"] = torch.cuda.max_memory_allocated(device)


def environment(device: torch.device, runs_per_gpu: int = 1) -> dict[str, Any]:
    """Describe the machine and software of a run; no part of the result, so that equal results are equal files."""
    gpu = device.type == "cuda"
    commit, dirty = checkout() or (None, None)
    driver = Path("/proc/driver/nvidia/version")
    return {
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda if gpu else None,
        "cudnn": torch.backends.cudnn.version() if gpu else None,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "kernels": library.kernels(device) if gpu else None,
        "runs_per_gpu": runs_per_gpu if gpu else None,
        "driver": driver.read_text().splitlines()[0] if gpu and driver.is_file() else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "processes": Processes.of_environment().world_size,
        "host": socket.gethostname(),
        "git_commit": commit,
        "git_dirty": dirty,
    }
