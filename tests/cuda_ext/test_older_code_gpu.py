"""Kernels compiled for an A100, on a later GPU: the driver makes its code from the library's PTX.

``__CUDA_ARCH__`` is 800 in that code, so that bulk copies, clusters and early launches are left out of it; a host that
decides by the GPU would wait for copies that nobody makes. In a process of its own: a library is loaded once.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cuda_ext import build, library

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# A folder with a library that `python -m cuda_ext.build --gpu 8.0 --output FOLDER` made.
FOLDER = os.environ.get("REREAD_LIBRARY_OF_SM_80")
PROGRAM = """
import sys
from pathlib import Path
import torch
from cuda_ext import build, exercise, library
build.BUILT = Path(sys.argv[1])
print(library.kernels(torch.device("cuda", 0)))
assert not torch.ops.reread_kernels_compiled.has_hopper_code(), "the driver ran other code than that of the PTX"
exercise.exercise()
"""


def test_code_for_hopper_is_known_as_such():
    library.kernel("swish", torch.empty(0, device="cuda"))
    hopper = torch.cuda.get_device_capability() >= (9, 0) and [9, 0] in build.built()["architectures"]
    assert torch.ops.reread_kernels_compiled.has_hopper_code() == hopper


@pytest.mark.skipif(
    not (FOLDER or shutil.which("nvcc")), reason="there is no nvcc, and REREAD_LIBRARY_OF_SM_80 is unset"
)
def test_every_operation_is_right_with_a_library_for_sm_80_alone(tmp_path):
    folder = Path(FOLDER) if FOLDER else tmp_path
    if not FOLDER:
        build.build(folder, [(8, 0)])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, timeout=900, check=False,
        cwd=build.SOURCES.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "; compiled for sm_80" in done.stdout and "exercised" in done.stdout
