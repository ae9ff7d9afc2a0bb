"""Time a kernel and a peer in turn, in several fresh processes, as scores for a verdict.

    python -m cuda_ext.pairs conv2d "64 x 512 x 512, 7 x 7, tiled, float32" cuDNN --output tiled.jsonl
    reread judge tiled.jsonl --treatment this --control cuDNN --margin 5% --lower-is-better --paired

A unit is a process: the samples of one share its memory and its moment. In it the two take turns, a sample each, so
that a change of the clocks meets both of a pair; every second process begins with the peer. The score of each is the
geometric mean of its samples, in milliseconds a call. The log of the scores' ratio is then the mean of the pairs' log
ratios, and a margin of 5 % is log 1.05.

Where the inputs lie on a GPU, its events time replays of a CUDA graph, which is captured here or is the case's own.
Where they lie on the CPU, as for copies to a GPU, the CPU's clock times calls, which return when all is done.

The file has a line of JSON for each of the two in each process. ``samples_ms`` has the samples in their order: those at
the same place of a process's two lines are a pair.
"""

import argparse
import importlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_ext import bench, library
from cuda_ext.case import Case, Run
from cuda_ext.errors import KernelError, command

PROCESSES = 8
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m cuda_ext.pairs", description="Time a kernel and a peer in turn, in fresh processes."
    )
    kernels = f"{', '.join(bench.KERNELS)}, or a module that defines bench_cases()"
    parser.add_argument("kernel", metavar="KERNEL", help=kernels)
    parser.add_argument("case", metavar="CASE", help="its shape and dtype: '1 x 1024 x 1024, 3 x 3, float32'")
    parser.add_argument("peer", metavar="PEER", help="one of the case's peers")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="how many (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=bench.SAMPLES, help="pairs a process (default: %(default)s)")
    parser.add_argument("--output", type=Path, required=True, help="the file that gets the scores, JSON lines")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in ("processes", "samples"):
        if getattr(arguments, name) < 1:
            raise KernelError(f"--{name} is {getattr(arguments, name)}: give 1 or more")
    if arguments.output.suffix != ".jsonl":
        raise KernelError(f"--output is {arguments.output}: JSON lines are read from a file that ends in .jsonl")
    bench.refuse_without_folder(arguments.output)
    if arguments.kernel in bench.KERNELS:
        bench.refuse_without_kernels()
    case = find_case(arguments.kernel, arguments.case, arguments.peer)
    if arguments.process is not None:
        write(arguments.output, measure(case, arguments.peer, arguments.process, arguments.samples))
        return
    lines: list[Line] = []
    logs = []
    for process in range(arguments.processes):
        own, peer = in_a_fresh_process(arguments, process)
        lines += [own, peer]
        logs.append(math.log(peer["score"] / own["score"]))
        print(f"process {process}: {own['score']:.4g} ms, {arguments.peer} {peer['score']:.4g} ms", flush=True)
        # A measurement that is interrupted keeps the processes that have ended.
        write(arguments.output, lines)
    print(f"{arguments.peer} takes {math.exp(statistics.fmean(logs)):.4g} times as long")


def find_case(kernel: str, name: str, peer: str) -> Case:
    """Return the case of a kernel, or of a module, that has the name and the peer; KernelError names what there is."""
    address = f"cuda_ext.{kernel}.cases" if kernel in bench.KERNELS else kernel
    known = ", ".join(bench.KERNELS)
    no_cases = KernelError(f"'{kernel}' has no cases: choose from {known}, or a module with bench_cases()")
    try:
        module = importlib.import_module(address)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and f"{address}.".startswith(f"{error.name}."):
            raise no_cases from None
        raise KernelError(f"'{kernel}' cannot be imported ({error}): install what it imports") from None
    if not hasattr(module, "bench_cases"):
        raise no_cases
    cases = {name_of(case): case for case in module.bench_cases()}
    if name not in cases:
        raise KernelError(f"{kernel} has no case '{name}': choose from {'; '.join(cases)}")
    if peer not in cases[name].peers:
        raise KernelError(f"the case '{name}' has no peer '{peer}': choose from {', '.join(cases[name].peers)}")
    return cases[name]


def name_of(case: Case) -> str:
    """Return how the command names a case of a kernel: its pass, if the kernel's name has one, its shape and dtype."""
    return ", ".join([*case.kernel.split()[1:], case.shape, str(case.dtype).removeprefix("torch.")])


def in_a_fresh_process(arguments: argparse.Namespace, process: int) -> list[Line]:
    """Return the lines of the case and of its peer; KernelError with the last line of a process that fails."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "scores.jsonl")
        program = [sys.executable, "-m", "cuda_ext.pairs", arguments.kernel, arguments.case, arguments.peer]
        program += ["--samples", str(arguments.samples), "--output", str(path), "--process", str(process)]
        done = subprocess.run(program, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip() or "it printed nothing").splitlines()[-1]
            raise KernelError(f"process {process} failed with exit code {done.returncode}: {last}")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measure(case: Case, peer: str, process: int, samples: int) -> list[Line]:
    """Time a case and a peer of it in this process; return the line of each, the case's first."""
    library.strict(True)
    torch.manual_seed(process)
    each_once = case.replays or case.before is not None
    sets, calls = ([case.inputs()], 1) if each_once else bench.sets_of(case)
    on_gpu = sets[0][0].is_cuda
    prepare = bench.captured if on_gpu and not case.replays else partial(called, graph=case.replays)
    runs = {bench.OWN: prepare(case.function, sets, calls), peer: prepare(case.peers[peer], sets, calls)}
    in_order = dict(reversed(runs.items())) if process % 2 else runs
    before = partial(case.before, *sets[0]) if case.before else None
    timed = bench.samples_in_turn(in_order, samples) if on_gpu else samples_on_cpu(in_order, samples, before)
    cpu = {"torch": torch.__version__, "threads": torch.get_num_threads()}
    return [
        {
            "arm": name,
            "seed": process,
            "metric": f"{case.kernel.split()[0]}, {name_of(case)}, ms",
            "score": statistics.geometric_mean(timed[name]),
            "samples_ms": timed[name],
            "graph": run.graph,
            "environment": bench.environment() if torch.cuda.is_initialized() else cpu,
        }
        for name, run in runs.items()
    ]


def called(function: Run, sets: list[tuple[Tensor, ...]], calls: int, graph: bool = False) -> bench.Run:
    """Return ``calls`` calls over the sets in turn, as they are. ``graph``: each replays a CUDA graph."""
    return bench.Run(lambda: [function(*sets[i % len(sets)]) for i in range(calls)], calls, graph)


def samples_on_cpu(
    runs: Mapping[str, bench.Run], samples: int, before: Callable[[], None] | None = None
) -> dict[str, list[float]]:
    """As ``bench.samples_in_turn``, by the CPU's clock; ``before`` comes before each run and is not timed."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    # The first sample of each warms up.
    for _ in range(1 + samples):
        for name, run in runs.items():
            if before is not None:
                before()
            begin = time.perf_counter()
            run.run()
            times[name].append((time.perf_counter() - begin) * 1e3 / run.calls)
    return {name: taken[1:] for name, taken in times.items()}


def write(path: Path, lines: Sequence[Line]) -> None:
    """Write JSON lines by rename: a reader sees all of them or none."""
    written = path.with_name(f"{path.name}.new")
    written.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in lines), encoding="utf-8")
    os.replace(written, path)


if __name__ == "__main__":
    command(main)()
