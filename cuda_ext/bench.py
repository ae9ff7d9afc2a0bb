"""Time every kernel against its best peer and against the floor: ``python -m cuda_ext.bench [KERNEL ...]``.

The floor is the bytes that must be moved over the bandwidth of a large copy, measured in the same run, or the
arithmetic over the rate of its unit, whichever is longer. Calls are captured in a CUDA graph, the peers' too, which
leaves out the time that Python takes to launch. They rotate over enough sets of inputs and keep enough outputs that the
caches do not hold them; only a case of which MOST_CALLS calls touch less than ROTATED_BYTES may stay in the caches. A
sample is one replay over its calls, and the kernel and its peers take turns, a sample each. A peer that no graph can
capture is timed call by call, and the JSON names it, as it names one that fails.
"""

import argparse
import importlib
import json
import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cuda_ext import build, library
from cuda_ext.case import Case
from cuda_ext.errors import KernelError, command

OWN = "this"
# Folders with a cases.py.
KERNELS = tuple(sorted(path.parent.name for path in build.SOURCES.glob("*/cases.py")))
SAMPLES = 50
# A call that waits for the CPU is long enough by itself.
CALLS_WITHOUT_GRAPH = 4
COPY_BYTES = 2**32
# What the calls of one replay touch together: several times an H200's 60 MB of cache.
ROTATED_BYTES = 2**29
MOST_CALLS = 1024
# By nvidia-smi: what a machine has, and the state it is in, recorded beside each case.
GPU_SETTINGS = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "ecc.mode.current")
GPU_STATE = ("clocks.sm", "clocks.memory", "power.draw", "temperature.gpu")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.bench", description="Time kernels, peers and the floor.")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"which: {', '.join(KERNELS)} (default: all)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.kernels) - set(KERNELS):
        raise KernelError(f"unknown kernel '{min(unknown)}': choose from {', '.join(KERNELS)}")
    if arguments.json:
        refuse_without_folder(arguments.json)
    for measured in measuring(arguments.kernels or KERNELS):
        if arguments.json:
            write(arguments.json, measured)
    print(table(measured))
    print(json.dumps(measured))


def measuring(kernels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Measure every case of ``kernels``; yield all that is measured after each: a run that is cut keeps it.

    KernelError if there is no GPU or no library for it.
    """
    refuse_without_kernels()
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    measured: dict[str, Any] = {"environment": environment(), "copy_bandwidth_gb_s": bandwidth / 1e9, "results": []}
    for case in all_cases(kernels):
        measured["results"].append(measure(case, bandwidth))
        yield measured


def refuse_without_folder(file: Path) -> None:
    """KernelError if the folder that a file is to lie in does not exist: the measurement would be lost."""
    if not file.absolute().parent.is_dir():
        raise KernelError(f"{file} lies in no folder that exists: make it")


def write(path: Path, measured: dict[str, Any]) -> None:
    """Write figures as JSON by rename: a run that is cut leaves the last whole file."""
    written = path.with_name(f"{path.name}.new")
    written.write_text(json.dumps(measured, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(written, path)


def refuse_without_gpu() -> None:
    if not torch.cuda.is_available():
        raise KernelError("the kernels run on an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")


def refuse_without_kernels() -> None:
    """KernelError if there is no GPU or no library for it."""
    refuse_without_gpu()
    if reason := library.unfit(torch.device("cuda", torch.cuda.current_device())):
        raise KernelError(f"there is no kernel to run: {reason}")


def all_cases(kernels: Sequence[str]) -> Iterator[Case]:
    for name in kernels:
        yield from importlib.import_module(f"cuda_ext.{name}.cases").bench_cases()


def environment() -> dict[str, Any]:
    """The machine and the versions that the figures hold for."""
    settings = gpu_values(GPU_SETTINGS)
    library = build.built()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": settings.pop("driver_version"),
        "gpu_settings": settings,
        "cudnn": torch.backends.cudnn.version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "kernels": library["sources"] if library else None,
        "nvcc": library["nvcc"] if library else None,
    }


def gpu_values(names: Sequence[str]) -> dict[str, str | None]:
    """Values of the current GPU by nvidia-smi, with units, by the names of its queries; None where it does not run."""
    query = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        # nvidia-smi counts all GPUs of the machine, PyTorch those it may see.
        query.append(f"--id=GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}")
        answer = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().split(", ")
    except (OSError, subprocess.CalledProcessError):
        return dict.fromkeys(names)
    return dict(zip(names, answer, strict=True))


def copy_bandwidth() -> float:
    """Bytes per second, read and written, of a copy of 4 GiB within the GPU's memory."""
    source = torch.randint(256, (COPY_BYTES,), dtype=torch.uint8, device="cuda")
    destination = torch.empty_like(source)
    return 2 * COPY_BYTES / (time_samples(lambda: destination.copy_(source), calls=1)["median_ms"] / 1e3)


def measure(case: Case, bandwidth: float) -> dict[str, Any]:
    # What torch.compile made for other cases would count towards its limit of recompilations.
    torch._dynamo.reset()
    sets, calls = sets_of(case)
    runs, failures = {OWN: captured(case.function, sets, calls)}, {}
    for name, peer in case.peers.items():
        try:
            runs[name] = captured(peer, sets, calls)
        except Exception as error:  # A compiler that fails on one case is no reason to lose the others.
            failures[name] = f"{type(error).__name__}: {error}"[:500]
    peers = time_in_turn(runs)
    own = peers.pop(OWN)
    state = gpu_values(GPU_STATE)
    # Copied first: an operation may change its inputs.
    wide = [in_float64(tensor) for tensor in sets[0]]
    best = min(peers, key=lambda name: peers[name]["median_ms"])
    floor = max(case.bytes / bandwidth, case.flops / case.flops_per_second) * 1e3
    return {
        "kernel": case.kernel,
        "shape": case.shape,
        "dtype": str(case.dtype).removeprefix("torch."),
        **own,
        "floor_ms": floor,
        "share_of_floor": floor / own["median_ms"],
        "best_peer": best,
        "times_best_peer": peers[best]["median_ms"] / own["median_ms"],
        "peers": peers,
        "failures": failures,
        "gpu_state": state,
        "relative_error": relative_error(case.function(*sets[0]), case.exact(*wide)),
    }


def sets_of(case: Case) -> tuple[list[tuple[Tensor, ...]], int]:
    """Return sets of inputs for the calls of one replay, and how many calls these are."""
    rotated = -(-ROTATED_BYTES // case.bytes)
    calls = max(4, min(MOST_CALLS, rotated))
    return [case.inputs() for _ in range(min(calls, rotated))], calls


def relative_error(result: Tensor | tuple[Tensor, ...], exact: Tensor | tuple[Tensor, ...]) -> float:
    """The norm of the difference over the norm, in float64; of several results the largest. NaN is infinitely wrong."""
    errors = []
    for a, b in zip(as_tuple(result), as_tuple(exact), strict=True):
        a, b = a.detach().double(), b.detach().double()
        error = (a - b).norm() / b.norm().clamp(min=torch.finfo(torch.float64).tiny)
        errors.append(float(error.nan_to_num(nan=float("inf"))))
    return max(errors)


def as_tuple(result: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def in_float64(tensor: Tensor) -> Tensor:
    """The same numbers in float64, asking for a gradient if ``tensor`` does; lengths and the like as they are."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


@dataclass(frozen=True)
class Run:
    """Something to be timed: ``calls`` calls in one go. ``graph``: it replays a CUDA graph."""

    run: Callable[[], object]
    calls: int
    graph: bool


def captured(function: Callable[..., Any], sets: list[tuple[Tensor, ...]], calls: int) -> Run:
    """Return ``calls`` calls over the sets in turn, by a CUDA graph or, where none can be captured, without one."""

    def run() -> list[Any]:
        # The outputs are kept until all calls are made: freed, they would share one place in the cache.
        return [function(*sets[i % len(sets)]) for i in range(calls)]

    side = warmed_up(run, 2)
    graph = torch.cuda.CUDAGraph()
    try:
        # The stream of the warm-up: a backward pass runs on the stream of its forward pass.
        with torch.cuda.graph(graph, stream=side):
            outputs = run()
    except RuntimeError:
        torch.cuda.synchronize()
        few = min(calls, CALLS_WITHOUT_GRAPH)
        return Run(lambda: [function(*sets[i % len(sets)]) for i in range(few)], few, False)

    def replay(_outputs: list[Any] = outputs) -> None:
        graph.replay()

    return Run(replay, calls, True)


def warmed_up(run: Callable[[], object], times: int) -> torch.cuda.Stream:
    """Run ``run`` so many times on a stream of its own, to the end, and return that stream, to capture ``run`` on."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            run()
    torch.cuda.synchronize()
    return side


def time_in_turn(runs: dict[str, Run], samples: int = SAMPLES) -> dict[str, dict[str, Any]]:
    """Return by name the summary of ``samples_in_turn``, and whether a graph was used."""
    timed = samples_in_turn(runs, samples)
    return {name: {**summary(times), "graph": runs[name].graph} for name, times in timed.items()}


def samples_in_turn(runs: dict[str, Run], samples: int) -> dict[str, list[float]]:
    """Time several by CUDA events, a sample of each in turn, so that a change of the clocks meets them alike.

    Returns by name the samples in their order, in milliseconds a call.
    """
    for timed in runs.values():
        for _ in range(5):
            timed.run()
    events: dict[str, list[Any]] = {name: [] for name in runs}
    for _ in range(samples):
        for name, timed in runs.items():
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            timed.run()
            end.record()
            events[name].append((start, end))
    torch.cuda.synchronize()
    return {
        name: [start.elapsed_time(end) / runs[name].calls for start, end in pairs] for name, pairs in events.items()
    }


def summary(times: Sequence[float]) -> dict[str, float]:
    """Return median, quartiles and number of times in milliseconds a call."""
    low, median, high = statistics.quantiles(times, n=4)
    return {"median_ms": median, "low_quartile_ms": low, "high_quartile_ms": high, "n": len(times)}


def time_samples(run: Callable[[], object], calls: int, samples: int = SAMPLES) -> dict[str, float]:
    """Time ``run``, by CUDA events, in milliseconds a call: median, quartiles and number of samples."""
    timed = time_in_turn({OWN: Run(run, calls, False)}, samples)[OWN]
    del timed["graph"]
    return timed


def table(measured: dict[str, Any]) -> str:
    """The figures as a Markdown table; the spread is the distance of the quartiles."""
    lines = [
        "| kernel | shape | dtype | ms | spread | n | floor ms | of floor "
        "| best peer | its ms | spread | times peer | error |",
        f"|{'---|' * 13}",
    ]
    for row in measured["results"]:
        peer = row["peers"][row["best_peer"]]
        cells = [
            row["kernel"],
            row["shape"],
            row["dtype"],
            f"{row['median_ms']:.4f}",
            f"{row['high_quartile_ms'] - row['low_quartile_ms']:.4f}",
            str(row["n"]),
            f"{row['floor_ms']:.4f}",
            f"{row['share_of_floor']:.1%}",
            row["best_peer"],
            f"{peer['median_ms']:.4f}",
            f"{peer['high_quartile_ms'] - peer['low_quartile_ms']:.4f}",
            f"{row['times_best_peer']:.2f}",
            f"{row['relative_error']:.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    command(main)()
