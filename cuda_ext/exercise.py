"""Run every kernel on small odd inputs and compare it with its reference: ``python -m cuda_ext.exercise``.

``--tool`` runs the same under one of compute-sanitizer's tools. initcheck finds what reads memory that nothing wrote,
such as a workspace; synccheck finds barriers that some threads miss.
"""

import argparse
import importlib
import os
import shutil
import subprocess
import sys

import torch

from cuda_ext import library
from cuda_ext.bench import KERNELS
from cuda_ext.errors import KernelError, command

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


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
        return sanitize(arguments.tool, arguments.kernels)
    exercise(arguments.kernels or KERNELS)
    return 0


def exercise(kernels: list[str] | tuple[str, ...] = KERNELS) -> None:
    library.strict(True)
    for name in kernels:
        # Drawn alike each time: a rounding error is at times larger than a gradient that is nearly zero.
        torch.manual_seed(0)
        importlib.import_module(f"cuda_ext.{name}.cases").exercise()
    torch.cuda.synchronize()
    print(f"exercised {', '.join(kernels)}")


def sanitize(tool: str, kernels: list[str]) -> int:
    """Run this program under the tool; returns its exit code, which is not 0 where it found something."""
    sanitizer = shutil.which("compute-sanitizer")
    if sanitizer is None:
        raise KernelError("compute-sanitizer is not on the PATH: it comes with the CUDA toolkit")
    program = [sys.executable, "-m", "cuda_ext.exercise", *kernels]
    # PyTorch's cache would hide where one tensor ends and the next begins.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    return subprocess.call([sanitizer, "--tool", tool, "--error-exitcode", "1", *program], env=environment)


if __name__ == "__main__":
    command(main)()
