"""The properties of this machine that a run's weights depend on:  python -m training.machine > machine.json

The mapping is part of a run's key. To make jobs for another machine, set REREAD_MACHINE to the file that this command
wrote there.
"""

import argparse
import json
import sys
from typing import Any

import numpy
import torch

from cuda_ext import library
from storage.errors import InputError, command


def machine() -> dict[str, Any]:
    """Return the versions of torch, numpy, CUDA and cuDNN, the device and its kernels; None for a GPU's on a CPU.

    device: the GPU's name or the CPU's instruction set. kernels: the digest of their CUDA sources, or why the library
    does not fit. InputError where the visible GPUs are of several kinds, since a run may get any of them.
    """
    versions = {"torch": torch.__version__, "numpy": numpy.__version__}
    if not torch.cuda.is_available():
        capability = torch.backends.cpu.get_cpu_capability()
        return {**versions, "cuda": None, "cudnn": None, "device": capability, "kernels": None}
    names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    if len(names) > 1:
        raise InputError(f"the visible GPUs are of several kinds ({', '.join(names)}): set CUDA_VISIBLE_DEVICES to one")
    return {
        **versions,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "device": names[0],
        "kernels": library.kernels(torch.device("cuda", torch.cuda.current_device())),
    }


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.machine", description=__doc__.splitlines()[0])
    parser.parse_args()
    json.dump(machine(), sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
