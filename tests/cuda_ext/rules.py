"""Rules for every kernel on a GPU, whatever it computes: called from the tests of each.

``function`` takes ``inputs``, tensors on the GPU, and returns a tensor or a tuple of tensors.
"""

import subprocess
import sys

import torch

from cuda_ext import bench, build
from cuda_ext.bench import as_tuple


def relative_error(results, exact):
    """The benchmark's own, of results of equal shapes."""
    assert [a.shape for a in as_tuple(results)] == [b.shape for b in as_tuple(exact)]
    return bench.relative_error(results, exact)


def fifty_runs_give_the_same_bits(function, inputs):
    torch.use_deterministic_algorithms(True)
    try:
        first = as_tuple(function(*inputs))
        for _ in range(50):
            again = as_tuple(function(*inputs))
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    finally:
        torch.use_deterministic_algorithms(False)


def a_graph_replays_it_on_new_values(function, inputs, changed):
    """``changed``: values of the first input that come after the capture; the replay must give what a call gives."""
    side = bench.warmed_up(lambda: function(*inputs), 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        results = as_tuple(function(*inputs))
    before = [result.clone() for result in results]
    with torch.no_grad():
        inputs[0].copy_(changed)
    graph.replay()
    torch.cuda.synchronize()
    expected = as_tuple(function(*inputs))
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, results, strict=True))


def it_runs_on_the_current_stream(function, inputs, changed):
    """On a stream that is held up before it writes the first input's new values, it must wait for them."""
    expected = as_tuple(function(changed, *inputs[1:]))
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        with torch.no_grad():
            inputs[0].copy_(changed)
        results = as_tuple(function(*inputs))
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def torch_compile_takes_it_whole(function, inputs, tolerance):
    """In one graph, with a change before it and one after it; compared by relative norm."""
    torch._dynamo.reset()

    def surrounded(first, *others):
        return tuple(result.sin() for result in as_tuple(function(first * 1.25, *others)))

    results = torch.compile(surrounded, fullgraph=True)(*inputs)
    assert relative_error(results, surrounded(*inputs)) <= tolerance


def it_stops_the_program(program, words, line):
    """In a process of its own, because a trap ends all work on the GPU: the program prints ``line`` and fails."""
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, timeout=300, check=False,
        cwd=build.SOURCES.parent,
    )  # fmt: skip
    assert done.returncode != 0, done.stdout
    assert done.stdout == f"{line}\n", done.stderr
