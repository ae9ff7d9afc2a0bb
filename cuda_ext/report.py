"""Build, test, watch and time the kernels on a GPU machine, and write it down: ``python -m cuda_ext.report``.

It runs the build, the tests marked ``gpu``, compute-sanitizer's four tools, and the benchmark, and writes
results/DATE-GPU.json and .md, which are committed as evidence. Exit code 1 if anything failed; it is written all the
same, so that a failure leaves its trace. ``--part`` does half of it, and ``--part times KERNEL ...`` times some
kernels: all of them take more than ten minutes, with torch.compile's strongest mode among the peers. Needs pytest, nvcc
and compute-sanitizer.
"""

import argparse
import datetime
import importlib.util
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from cuda_ext import bench, build, library
from cuda_ext.errors import KernelError, command
from cuda_ext.exercise import TOOLS

RESULTS = build.SOURCES / "results"
ROOT = build.SOURCES.parent


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cuda_ext.report", description="Test and time all kernels.")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder that gets the report")
    parser.add_argument("--commit", help="the commit of the sources, where git cannot be asked")
    parser.add_argument(
        "--part", choices=("checks", "times"), help="one alone; the other is kept from today's report of these kernels"
    )
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help="time these alone (default: all)")
    arguments = parser.parse_args()
    if unknown := set(arguments.kernels) - set(bench.KERNELS):
        raise KernelError(f"unknown kernel '{min(unknown)}': choose from {', '.join(bench.KERNELS)}")
    if not torch.cuda.is_available():
        raise KernelError("the report is of an NVIDIA GPU, and PyTorch sees none: see `nvidia-smi`")
    if library.unfit(torch.device("cuda", torch.cuda.current_device())):
        build.build()
        library.unfit.cache_clear()
    today = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    gpu = re.sub(r"[^a-z0-9]+", "-", torch.cuda.get_device_name().lower()).strip("-")
    path = build.writable(arguments.output) / f"{today}-{gpu}.json"
    report: dict[str, Any] = {"date": today, "commit": arguments.commit or commit(), "environment": bench.environment()}
    kept = json.loads(path.read_text(encoding="utf-8")) if arguments.part and path.is_file() else {}
    if kept.get("environment") == report["environment"]:
        report = kept | report
    if arguments.part != "times":
        report["checks"] = check()
    bench.write(path, report)
    if arguments.part != "checks":
        kernels = arguments.kernels or bench.KERNELS
        others = [result for result in report.get("results", []) if result["kernel"].split()[0] not in kernels]
        for measured in bench.measuring(kernels):
            report |= measured | {"results": others + measured["results"]}
            # A run that is cut keeps what it has measured.
            bench.write(path, report)
    if {"checks", "results"} <= report.keys():
        path.with_suffix(".md").write_text(markdown(report), encoding="utf-8")
        print(markdown(report))
    return 0 if all(check["passed"] for check in report.get("checks", {}).values()) else 1


def check() -> dict[str, Any]:
    """The GPU tests and the sanitizers, side by side: none of them measures time."""
    # A GPU machine need not have what the other tests import.
    rooms = ("cuda_ext", "models", "reread/training")
    files = [str(path) for room in rooms for path in ROOT.glob(f"tests/{room}/*_gpu.py")]
    tests = [sys.executable, "-m", "pytest", "-q", *sorted(files)]
    if importlib.util.find_spec("xdist"):
        # pytest-benchmark, where it is installed, warns of the company, and a warning is an error.
        tests += ["-n", "4", "-p", "no:benchmark"]
    with ThreadPoolExecutor() as pool:
        running = {"gpu tests": pool.submit(run, tests)}
        exercise = [sys.executable, "-m", "cuda_ext.exercise", "--tool"]
        running |= {tool: pool.submit(run, [*exercise, tool]) for tool in TOOLS}
        return {name: process.result() for name, process in running.items()}


def run(arguments: list[str]) -> dict[str, Any]:
    """Run a command in the project's root; ``output`` is its last line, all of it after a failure."""
    done = subprocess.run(arguments, cwd=ROOT, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output = done.stdout.strip()
    return {
        "passed": done.returncode == 0,
        "output": output.splitlines()[-1] if done.returncode == 0 else output[-4000:],
    }


def commit() -> str | None:
    """The checkout's commit, with ``-dirty`` if it holds changes; None outside a checkout."""
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
            for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"])
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("-dirty" if changes else "")


def markdown(report: dict[str, Any]) -> str:
    environment = report["environment"]
    checks = "\n".join(
        f"- {name}: {'passed' if check['passed'] else 'FAILED'} ({check['output'].splitlines()[-1].strip('= ')})"
        for name, check in report["checks"].items()
    )
    return f"""# Kernels on one {environment["gpu"]}, {report["date"]}

Driver {environment["driver"]}, torch {environment["torch"]}, CUDA {environment["cuda"]}, Python \
{environment["python"]}, nvcc {environment["nvcc"]}; kernels {environment["kernels"]}, commit {report["commit"]}.
Made by `python -m cuda_ext.report`.

{checks}

Copy within the GPU's memory: {report["copy_bandwidth_gb_s"]:.0f} GB/s, read and written. ms: median of n samples, each
a replay of a CUDA graph; spread: the distance of the quartiles; floor: the bytes that must be moved at the copy's
speed; error: relative norm against float64.

{bench.table(report)}
"""


if __name__ == "__main__":
    command(main)()
