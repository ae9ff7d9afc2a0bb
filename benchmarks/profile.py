"""Show where a training step's time goes, kernel by kernel: ``python -m benchmarks.profile NETWORK``, on a GPU.

The step is the one that ``benchmarks.han`` or ``benchmarks.densenet`` times, with kernels and a CUDA graph; ``--peer``
profiles their plain PyTorch step. torch.profiler records each kernel's time on the GPU. The table has one row per
kernel: calls and microseconds per step, and its share of the time of all kernels; what of the step's own time no kernel
fills is the last row. Profiling itself lengthens a step by some per cent.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from benchmarks import densenet, han
from cuda_ext import bench
from reread.storage.errors import InputError, command
from reread.storage.files import write_json

# Name here: that of benchmarks.densenet.
DENSENETS = {"densenet": "DenseNet-BC-100-12", "densenet-121": "DenseNet-121"}
BATCH = {"han": 64, "densenet": 512, "densenet-121": 128}
STEPS = 20
ROWS = 40
LONGEST_NAME = 90


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description="Profile a step by kernel.")
    parser.add_argument("network", choices=BATCH)
    default = ", ".join(f"{batch} for {name}" for name, batch in BATCH.items())
    parser.add_argument("--batch", type=int, help=f"documents or images of the step (default: {default})")
    parser.add_argument("--amp", choices=han.AMPS, default="bf16", help="precision of HAN's step (default: bf16)")
    parser.add_argument("--peer", action="store_true", help="the plain PyTorch step in a CUDA graph")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    arguments = parser.parse_args()
    if arguments.batch is not None and arguments.batch < 1:
        raise InputError(
            f"--batch is the number of documents or images of a step: give at least 1, not {arguments.batch}"
        )
    bench.refuse_without_kernels()
    torch.backends.cudnn.benchmark = True
    batch = arguments.batch or BATCH[arguments.network]
    step = steps_of(arguments.network, batch, arguments.amp, arguments.peer)
    measured = {
        "environment": bench.environment(),
        "network": arguments.network,
        "batch": batch,
        "amp": arguments.amp if arguments.network == "han" else "bf16",
        "peer": arguments.peer,
        **profiled(step, STEPS),
    }
    print(table(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def steps_of(network: str, batch: int, amp: str, peer: bool) -> Callable[[], object]:
    """Return the step to profile, warmed up and captured."""
    if network in DENSENETS:
        name = DENSENETS[network]
        built = densenet.torchvision_network(name) if peer else densenet.network(name)
        return densenet.training_step(built, *densenet.batch(name, batch), captured=True)
    torch.manual_seed(0)
    tokens, word_counts, labels = han.documents(batch)
    if peer:
        return han.peer_steps(amp, *han.grouped(tokens.cuda().long(), 1), labels, compiled=False)[1]
    return han.our_step(amp, tokens, word_counts, labels)


def profiled(step: Callable[[], object], steps: int) -> dict[str, Any]:
    """Time the step without the profiler, then with it: its median, and calls and time per step of each kernel."""
    timed = bench.time_samples(step, calls=1, samples=steps)
    with torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], acc_events=True) as profile:
        for _ in range(steps):
            step()
        torch.cuda.synchronize()
    spans = [
        (event.name, event.time_range.elapsed_us())
        for event in profile.events()
        # An annotation spans the kernels of its region.
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    return {"step": timed, "kernels": by_kernel(spans, steps)}


def by_kernel(spans: Iterable[tuple[str, float]], steps: int) -> list[dict[str, Any]]:
    """Sum the spans (name, microseconds) of steps by name: calls and microseconds per step, the longest first."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for name, microseconds in spans:
        by_name[name].append(microseconds)
    rows = [
        {"kernel": name, "calls": len(times) / steps, "microseconds": sum(times) / steps}
        for name, times in by_name.items()
    ]
    return sorted(rows, key=lambda row: (-row["microseconds"], row["kernel"]))


def table(measured: dict[str, Any]) -> str:
    """Return the rows as a Markdown table; the shortest kernels are one row."""
    rows, step = measured["kernels"], measured["step"]["median_ms"] * 1e3
    whole = sum(row["microseconds"] for row in rows)
    shown = [(row["kernel"][:LONGEST_NAME], row["calls"], row["microseconds"]) for row in rows[:ROWS]]
    if rest := rows[ROWS:]:
        shown.append(
            (f"{len(rest)} others", sum(row["calls"] for row in rest), sum(row["microseconds"] for row in rest))
        )
    lines = ["| kernel | calls | us | share |", "|---|---|---|---|"]
    lines += [f"| `{name}` | {calls:g} | {time:.1f} | {time / whole:.1%} |" for name, calls, time in shown]
    calls = sum(row["calls"] for row in rows)
    lines.append(f"| all kernels | {calls:g} | {whole:.1f} | 100.0% |")
    lines.append(f"| the step, without the profiler | | {step:.1f} | |")
    title = f"{measured['network']}, batch {measured['batch']}, {measured['amp']}{', peer' if measured['peer'] else ''}"
    return f"{title}: per step\n\n" + "\n".join(lines)


if __name__ == "__main__":
    command(main)()
