"""Milliseconds that a run takes beside its training, on a warm server: ``python -m benchmarks.overhead``.

python -m benchmarks.overhead --runs 200 --json FILE

Runs of a tiny network on digits, of one epoch and different seeds, are trained one after the other by ``reread train``,
with a server of Prefect and a database of MLflow in a temporary folder. A second command finds them cached. What a
command with one run takes is subtracted: imports, the plan, and the start of a training process. ``training`` is what
timing.json has of a run, from its first step to its last. ``overhead`` is all else: the flow's own time, feeding a
process, torch's set-up, checkpoints, tracking.
"""

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from reread.storage.errors import InputError, WorkFailed, command
from reread.storage.files import read_json, write_json
from reread.storage.run_folder import TIMING
from reread.storage.secret import USER, draw

TRAIN = ("train", "--experiment", "tiny", "--variant", "densenet-relu")
SETTINGS = {
    "training.max_epochs": "1",
    "training.schedule": "{name: constant, warmup_epochs: 0}",
    "preprocessing.rows_per_class": "5",
}
START_SECONDS = 180


def measure(runs: int, folder: Path) -> dict[str, dict[str, float]]:
    """Train ``runs`` runs and find them again; return milliseconds per run."""
    auth = f"{USER}:{draw()}"
    environment = {
        **os.environ,
        "REREAD_RUNS": str(folder / "runs"),
        "REREAD_WORKERS": "1",
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        "PREFECT_API_AUTH_STRING": auth,
    }
    with prefect_server(environment, folder / "prefect.log") as api:
        environment["PREFECT_API_URL"] = api
        seconds([0], environment)
        known = finished(folder)
        single = seconds([1], environment)
        seeds = range(2, runs + 2)
        several = seconds(seeds, environment)
        training = fmean(read_json(path)["seconds"] for path in finished(folder) - known)
        milliseconds = {"trained": per_run(several - single, runs, training)}
        milliseconds["cached"] = per_run(seconds(seeds, environment) - seconds([2], environment), runs, 0.0)
    return milliseconds


def per_run(seconds: float, runs: int, training: float) -> dict[str, float]:
    """Return milliseconds per run, of seconds that ``runs`` runs take more than one does."""
    run = 1e3 * seconds / (runs - 1)
    return {"run": run, "training": 1e3 * training, "overhead": run - 1e3 * training}


def finished(folder: Path) -> set[Path]:
    return set(folder.glob(f"runs/*/{TIMING}"))


def seconds(seeds: Any, environment: dict[str, str]) -> float:
    """Return the seconds of a command that trains these seeds, or finds them."""
    given = [f"--seed={seed}" for seed in seeds] + [f"--set={name}={value}" for name, value in SETTINGS.items()]
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "reread", *TRAIN, *given], env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise WorkFailed(f"reread train ended with exit code {done.returncode}: {done.stderr[-2000:]}")
    return time.perf_counter() - start


@contextmanager
def prefect_server(environment: dict[str, str], log: Path) -> Iterator[str]:
    """Run a server of Prefect for the block and yield the address of its API."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    words = ["-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with open(log, "w", encoding="utf-8") as output:
        server = subprocess.Popen([sys.executable, *words], env=environment, stdout=output, stderr=output)
        try:
            wait_for(f"{api}/health", server, log)
            yield api
        finally:
            server.terminate()
            server.wait()


def wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise WorkFailed(f"Prefect's server does not start: {log.read_text(encoding='utf-8')[-2000:]}")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=200, help="how many (%(default)s)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args(arguments)
    if options.runs < 2:
        raise InputError(f"--runs is {options.runs}: give two or more")
    with tempfile.TemporaryDirectory() as folder:
        milliseconds = measure(options.runs, Path(folder))
    for title, row in milliseconds.items():
        print(f"{title}: " + ", ".join(f"{name} {value:.1f}" for name, value in row.items()) + " ms per run")
    versions = {name: version(name) for name in ("torch", "mlflow", "prefect")}
    about = {"python": platform.python_version(), "cores": os.cpu_count(), "load": os.getloadavg()[0], **versions}
    measured = {"environment": about, "runs": options.runs, "milliseconds": milliseconds}
    print(json.dumps(measured))
    if options.json:
        write_json(options.json, measured)


if __name__ == "__main__":
    command(main)()
