"""The benchmarks of copies and of managed memory: every way gives the same, and each case can be timed by name."""

import os
import subprocess
import sys

import pytest
import torch

from benchmarks import overlap, unified_memory
from cuda_ext import library, pairs
from reread.storage.source import ROOT

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")


@pytest.mark.parametrize("module", [overlap, unified_memory])
def test_each_case_is_found_by_its_name_and_lies_on_the_cpu_s_side(module):
    names = [pairs.name_of(case) for case in module.bench_cases()]
    assert len(set(names)) == len(names)
    for name in names:
        for peer in next(iter(module.bench_cases())).peers:
            assert pairs.find_case(module.__name__, name, peer).bytes > 0


def test_a_round_adds_one():
    x = torch.rand(100, dtype=torch.float64)
    torch.testing.assert_close(overlap.compute(x, 3), x + 3)


@pytest.mark.parametrize(
    "words",
    [
        ["benchmarks.overlap", "256 MiB, 1 round, float32", "one stream"],
        ["benchmarks.unified_memory", "2^20, float32", "page faults"],
    ],
    ids=lambda words: words[0],
)
def test_without_a_gpu_it_says_so_in_one_line(tmp_path, words):
    done = subprocess.run(
        [sys.executable, "-m", "cuda_ext.pairs", *words, "--output", tmp_path / "scores.jsonl"],
        cwd=ROOT, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "GPU" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("pinned", [True, False])
@pytest.mark.parametrize("numbers", [1000, 2**22])
def test_every_order_of_copies_gives_the_same_bits(numbers, pinned):
    x = torch.rand(numbers, pin_memory=pinned)
    expected = overlap.compute(x.cuda(), 2).cpu()
    for chunks in (1, 2, 4):
        for way in (overlap.depth_first, overlap.breadth_first):
            result = torch.full((numbers,), torch.nan, pin_memory=pinned)
            assert torch.equal(way(x, result, 2, chunks), expected)


@pytest.mark.gpu
@on_gpu
def test_managed_memory_is_one_for_the_host_and_the_gpu():
    x, y = unified_memory.written(2**20)
    assert not x.is_cuda and unified_memory.on_gpu(x).is_cuda
    assert unified_memory.on_gpu(x).data_ptr() == x.data_ptr()
    for way in (unified_memory.by_prefetch, unified_memory.by_page_faults):
        for _ in range(3):
            unified_memory.write_on_host(x, y)
            assert torch.equal(way(x, y), torch.full((2**20,), 3.0))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("module", [overlap, unified_memory])
def test_a_case_is_timed_with_the_gpu_s_environment(module, monkeypatch):
    monkeypatch.setattr(library, "_strict", False)  # a measurement sets it, and here it is set back
    case = next(iter(module.bench_cases()))
    for line in pairs.measure(case, next(iter(case.peers)), process=0, samples=2):
        assert min(line["samples_ms"]) > 0 and "gpu" in line["environment"] and not line["graph"]


@pytest.mark.gpu
@on_gpu
def test_more_than_half_of_the_gpu_s_memory_is_refused():
    free, _ = torch.cuda.mem_get_info()
    with pytest.raises(pairs.KernelError, match="more than half of the GPU's free memory"):
        unified_memory.written(free // 8)
