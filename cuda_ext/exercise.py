"""Run every kernel on small odd inputs and compare it with its reference: ``python -m cuda_ext.exercise``.

Memory is NaN until something writes it: what reads a part of a workspace too early gives other results.

``--tool`` runs the same under one of compute-sanitizer's tools. initcheck finds what reads memory that nothing wrote;
memory then is as it comes. It does not see bulk copies to global memory (cp.async.bulk), and so would report, wrongly,
what reads the results of kernels that make them: it leaves these out, unless they are named. synccheck finds barriers
that some threads miss.
"""

import argparse
import contextlib
import importlib
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator

import torch

from cuda_ext import library
from cuda_ext.bench import KERNELS, refuse_without_kernels
from cuda_ext.errors import KernelError, command

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# Their results are written by bulk copies: the GRU's recurrence.
WRITTEN_BY_BULK_COPIES = ("gru",)
# Set where a tool of compute-sanitizer watches.
SANITIZED = "CUDA_EXT_SANITIZED"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ext.exercise", description="Run every kernel on small inputs."
    )
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"which: {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--tool", choices=TOOLS, help="run under this tool of compute-sanitizer")
    arguments = parser.parse_args()
    if unknown := set(arguments.kernels) - set(KERNELS):
        raise KernelError(f"unknown kernel '{min(unknown)}': choose from {', '.join(KERNELS)}")
    if arguments.tool:
        unseen = WRITTEN_BY_BULK_COPIES if arguments.tool == "initcheck" else ()
        return sanitize(arguments.tool, arguments.kernels or [name for name in KERNELS if name not in unseen])
    exercise(arguments.kernels or KERNELS)
    return 0


def exercise(kernels: list[str] | tuple[str, ...] = KERNELS) -> None:
    refuse_without_kernels()
    library.strict(True)
    with contextlib.nullcontext() if SANITIZED in os.environ else unwritten_memory_is_nan():
        for name in kernels:
            # Drawn alike each time: a rounding error is at times larger than a gradient that is nearly zero.
            torch.manual_seed(0)
            importlib.import_module(f"cuda_ext.{name}.cases").exercise()
        torch.cuda.synchronize()
    print(f"exercised {', '.join(kernels)}")


@contextlib.contextmanager
def unwritten_memory_is_nan() -> Iterator[None]:
    """Fill each new tensor with NaN, as PyTorch does in its deterministic mode."""
    mode = torch.get_deterministic_debug_mode()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*deterministic")
            yield
    finally:
        torch.set_deterministic_debug_mode(mode)


def sanitize(tool: str, kernels: list[str]) -> int:
    """Run this program under the tool; returns its exit code, which is not 0 where it found something."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise KernelError("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit")
    program = [sys.executable, "-m", "cuda_ext.exercise", *kernels]
    # PyTorch's cache would hide where one tensor ends and the next begins.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", SANITIZED: "1"}
    return subprocess.call([sanitizer, "--tool", tool, "--error-exitcode", "1", *program], env=environment)


if __name__ == "__main__":
    command(main)()
