"""The properties of this machine that a run's weights depend on:  python -m reread.training.machine > machine.json

The mapping is part of a run's key. To make jobs for another machine, set REREAD_MACHINE to the file that this command
wrote there.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy
import torch

from cuda_ext import library
from reread.storage.errors import InputError, command

CPU_DESCRIPTION = Path("/proc/cpuinfo")
# Of its lines those that name a kind of CPU, with the words that stand before their values; x86-64, then Arm.
CPU_NAMES = {
    "vendor_id": "",
    "cpu family": "family ",
    "model": "model ",
    "CPU implementer": "implementer ",
    "CPU part": "part ",
}


def cpu(description: Path = CPU_DESCRIPTION) -> str:
    """Return the kind of CPU that float arithmetic depends on: ``AVX512, AuthenticAMD family 26 model 2``.

    It is the instruction set that PyTorch uses, then vendor, family and model, by which the libraries of matrix
    products choose their code: CPUs of one instruction set differ in the last bits. Without ``description``, it is the
    instruction set alone.
    """
    text = description.read_text(encoding="utf-8") if description.is_file() else ""
    properties = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", text.split("\n\n")[0], re.MULTILINE))
    named = " ".join(before + properties[name] for name, before in CPU_NAMES.items() if name in properties)
    return ", ".join(filter(None, (torch.backends.cpu.get_cpu_capability(), named)))


def machine() -> dict[str, Any]:
    """Return the versions of torch, numpy, CUDA and cuDNN, the device and its kernels; None for a GPU's on a CPU.

    device: the GPU's name or ``cpu``. kernels: whether the compiled library runs (cuda_ext.library.implementation); a
    run's key has the digests of the kernels that it calls beside it. InputError where the visible GPUs are of several
    kinds, since a run may get any of them.
    """
    versions = {"torch": torch.__version__, "numpy": numpy.__version__}
    if not torch.cuda.is_available():
        return {**versions, "cuda": None, "cudnn": None, "device": cpu(), "kernels": None}
    names = sorted({torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())})
    if len(names) > 1:
        raise InputError(f"the visible GPUs are of several kinds ({', '.join(names)}): set CUDA_VISIBLE_DEVICES to one")
    return {
        **versions,
        "cuda": torch.version.cuda,
        "cudnn": str(torch.backends.cudnn.version()),
        "device": names[0],
        "kernels": library.implementation(library.kernels(torch.device("cuda", torch.cuda.current_device()))),
    }


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m reread.training.machine", description=__doc__.splitlines()[0])
    parser.parse_args()
    json.dump(machine(), sys.stdout, indent=2, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
