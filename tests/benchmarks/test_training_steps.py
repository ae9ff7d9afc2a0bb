"""The benchmarks of training steps: measured on a GPU, refused in one line without one."""

import os
import subprocess
import sys

import pytest
import torch

from storage.source import ROOT


@pytest.mark.parametrize("module", ["benchmarks.han", "benchmarks.densenet", "benchmarks.capsules"])
def test_without_a_gpu_a_benchmark_says_so_in_one_line(module):
    done = subprocess.run(
        [sys.executable, "-m", module],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "GPU" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")
def test_han_s_step_is_timed_beside_its_peers():
    from benchmarks import han

    result = han.measure(batch=4)
    assert set(result["timed"]) > {"reread, off", "reread, bfloat16", "eager, off", "CUDA graph, bfloat16"}
    assert all(row["median_ms"] > 0 for row in result["timed"].values())
