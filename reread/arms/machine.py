"""The machine that runs commands, as keys of runs have it; `python -m reread.arms.machine` prints it as JSON."""

import functools
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError
from reread.storage.files import read_json


@functools.cache
def this_machine() -> dict[str, Any]:
    """Return the platform, the version of `python` on the PATH, and the names of the GPUs; no name of the host."""
    python = output_of("python", "--version").removeprefix("Python ") or platform.python_version()
    names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "python": python,
        "gpus": sorted({name.strip() for name in names}),
    }


def read_machine(path: Path) -> dict[str, Any]:
    """Return the machine that another one has described; InputError for any other file."""
    machine = read_json(path)
    if not isinstance(machine, dict) or machine.keys() != this_machine().keys():
        raise InputError(
            f"{path} describes no machine for commands: make it by `python -m reread.arms.machine` on that machine"
        )
    return machine


def output_of(*command: str) -> str:
    """Return what a program prints; nothing where there is none or it fails."""
    if shutil.which(command[0]) is None:
        return ""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else ""


if __name__ == "__main__":
    print(json.dumps(this_machine()))
