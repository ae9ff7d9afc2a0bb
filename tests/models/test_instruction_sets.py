"""Training steps stay within their memory on a CPU with AVX-512 and on one with AVX2 alone."""

import os
import platform
import re
import subprocess
import sys

import pytest

from reread.storage.source import ROOT

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the instruction sets are those of x86-64")
# On a CPU without AVX-512 both are the same.
INSTRUCTION_SETS = {
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "the CPU's": {},
}
# Input channels and pixels a side.
SIZES = [(1, 32), (4, 32), (15, 64)]
GRADIENTS = f"""
import torch
from models.layers.residual import convolution
for inputs, pixels in {SIZES}:
    torch.manual_seed(0)
    layer = convolution(inputs, 16, 1, 2)
    images = torch.randn(32, inputs, pixels, pixels).to(memory_format=torch.channels_last)
    gradient = torch.randn(32, 16, pixels // 2, pixels // 2).to(memory_format=torch.channels_last)
    computed = torch.autograd.grad(layer(images), layer.weight, gradient)[0]
    exact = torch.einsum("nohw,nihw->oi", gradient.double(), images[:, :, ::2, ::2].double())
    torch.testing.assert_close(computed[:, :, 0, 0].double(), exact, rtol=1e-4, atol=1e-2)
"""
STRIDED_WEIGHTS = re.compile(r",jit_1x1:\w+,backward_weights,.*?_ic(\d+)oc\d+_.*kh1sh(\d+).*kw1sw(\d+)")


def python(instructions, *arguments):
    """Run Python in a process of its own, whose heap is checked by the C library."""
    checked = {"MALLOC_CHECK_": "3", "LD_PRELOAD": "libc_malloc_debug.so.0"}
    one_thread = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    environment = {**os.environ, **checked, **one_thread, **INSTRUCTION_SETS[instructions], "ONEDNN_VERBOSE": "1"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True, check=False)


def overflowing(output):
    """Gradients of strided 1x1 convolutions with fewer channels than the block of oneDNN's AVX-512."""
    weights = STRIDED_WEIGHTS.findall(output)
    return [sizes for sizes in weights if int(sizes[0]) < 16 and (int(sizes[1]) > 1 or int(sizes[2]) > 1)]


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_a_strided_projection_of_few_channels_has_its_gradients(instructions):
    ended = python(instructions, "-c", GRADIENTS)
    assert ended.returncode == 0, ended.stderr
    assert len(STRIDED_WEIGHTS.findall(ended.stdout)) == len(SIZES)
    assert overflowing(ended.stdout) == []


@pytest.mark.parametrize("instructions", INSTRUCTION_SETS)
def test_the_networks_train_within_their_memory(instructions):
    chosen = ("tests/models/test_registry.py", "tests/golden", "-k", "trains_a_step or golden_run")
    ended = python(instructions, "-m", "pytest", "-q", "-s", "-n", "0", *chosen)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr
    assert STRIDED_WEIGHTS.search(ended.stdout)
    assert overflowing(ended.stdout) == []
