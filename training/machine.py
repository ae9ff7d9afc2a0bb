"""What of this machine a run's weights depend on:  python -m training.machine > machine.json

The mapping is a part of the key that names a run. Where jobs are made for another machine, REREAD_MACHINE names the
file that this command wrote there.
"""

import argparse
import json
import sys
from typing import Any

import torch

from cuda_ext import library
from storage.errors import command
from training.processes import Processes


def machine() -> dict[str, Any]:
    """torch, CUDA, the GPU's name or the CPU's instruction set, and the number of processes if there are several.

    On a GPU also the kernels: their CUDA sources, or that there is no library of them that fits.
    """
    several = {"processes": size} if (size := Processes.of_environment().world_size) > 1 else {}
    if not torch.cuda.is_available():
        device = torch.backends.cpu.get_cpu_capability()
        return {"torch": torch.__version__, "cuda": None, "device": device, **several}
    return {
        **several,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name(),
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
