"""Run every kernel on small odd inputs, for compute-sanitizer: ``compute-sanitizer python -m cuda_ext.exercise``.

Set PYTORCH_NO_CUDA_MEMORY_CACHING=1 with it: PyTorch's cache hides where one tensor ends and the next begins.
"""

import importlib

import torch

from cuda_ext import library
from cuda_ext.bench import KERNELS
from cuda_ext.errors import command


def main() -> None:
    library.strict(True)
    for name in KERNELS:
        importlib.import_module(f"cuda_ext.{name}.cases").exercise()
    torch.cuda.synchronize()
    print(f"exercised {', '.join(KERNELS)}")


if __name__ == "__main__":
    command(main)()
