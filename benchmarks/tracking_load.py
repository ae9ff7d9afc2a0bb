"""Requests per second of a tracking server while several workers log at once, and whether it keeps every metric.

set -a; . ./ada.env
python -m benchmarks.tracking_load --workers 8 --seconds 60

Each worker is a process that logs runs of 100 epochs, one after another, as training does: a request per epoch with
six metrics, without a pause. Afterwards every metric of every run is read from the server and compared with what was
sent. An error ends the benchmark. MLFLOW_TRACKING_URI names the server. The runs are in the experiment `tracking-load`.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import platform
import random
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from reread.storage.errors import InputError, WorkFailed, command
from reread.storage.files import write_json
from reread.tracking.connection import tracking_uri
from reread.tracking.runs import Tracking, open_tracking
from reread.tracking.times import now

EXPERIMENT = "tracking-load"
EPOCHS = 100
METRICS = ("training_loss", "validation_loss", "validation_score", "learning_rate", "seconds", "gradient_norm")


def rows_of(worker: int, number: int) -> list[dict[str, float]]:
    """Return the epochs of one run: the same numbers each time."""
    draw = random.Random(f"{worker}-{number}")
    return [{"epoch": epoch, **{name: draw.random() for name in METRICS}} for epoch in range(1, EPOCHS + 1)]


def log_runs(worker: int, seconds: float, start: Any, sent: Any) -> None:
    """Log runs for a number of seconds, and put what was sent on the queue ``sent``: or the error that ended it.

    sent: (worker, [(run id, number, epochs)], seconds of each request, error or None)
    """
    runs: list[tuple[str, int, int]] = []
    spent: list[float] = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            # A folder of its own, as on a machine of its own: locks of one folder are no help to another machine.
            tracking = open_tracking(Path(folder))
            experiment = tracking.experiment(EXPERIMENT)
            start.wait()
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                log_run(tracking, experiment, worker, end, runs, spent)
    except Exception as error:  # whatever MLflow raises is the result of this worker
        start.abort()
        sent.put((worker, runs, spent, f"{type(error).__name__}: {error}"))
    else:
        sent.put((worker, runs, spent, None))


def log_run(
    tracking: Tracking, experiment: str, worker: int, end: float, runs: list[tuple[str, int, int]], spent: list[float]
) -> None:
    """Log one run until it or the time has ended; append it to ``runs`` and its requests' seconds to ``spent``."""
    number = len(runs)
    run_id = tracking.client.create_run(experiment, run_name=f"worker-{worker}-{number}").info.run_id
    runs.append((run_id, number, 0))
    for row in rows_of(worker, number):
        before = time.perf_counter()
        tracking.log_metrics(run_id, [(name, int(row["epoch"]), row[name], now()) for name in METRICS])
        spent.append(time.perf_counter() - before)
        runs[-1] = (run_id, number, int(row["epoch"]))
        if time.monotonic() >= end:
            break
    tracking.client.set_terminated(run_id, "FINISHED")


def lost(tracking: Tracking, worker: int, runs: list[tuple[str, int, int]]) -> Iterator[str]:
    """Yield each metric that the server does not have as it was sent."""
    for run_id, number, epochs in runs:
        rows = rows_of(worker, number)[:epochs]
        for name in METRICS:
            kept = {metric.step: metric.value for metric in tracking.client.get_metric_history(run_id, name)}
            if kept != {row["epoch"]: row[name] for row in rows}:
                yield f"{name} of run {run_id}: {len(kept)} of {epochs} values"


def measure(workers: int, seconds: float) -> dict[str, Any]:
    """Log with ``workers`` processes for ``seconds``; WorkFailed on an error or a lost metric."""
    # Forked: MLflow is imported once.
    context = multiprocessing.get_context("fork")
    tracking = open_tracking()
    tracking.experiment(EXPERIMENT)
    start, sent = context.Barrier(workers + 1), context.SimpleQueue()
    processes = [context.Process(target=log_runs, args=(worker, seconds, start, sent)) for worker in range(workers)]
    for process in processes:
        process.start()
    load = os.getloadavg()[0]
    with contextlib.suppress(threading.BrokenBarrierError):  # a worker has failed
        start.wait()
    before = time.monotonic()
    results = [sent.get() for _ in processes]
    elapsed = time.monotonic() - before
    for process in processes:
        process.join()
    errors = [error for *_, error in results if error]
    if errors:
        raise WorkFailed(f"{len(errors)} of {workers} workers failed, the first with {errors[0].splitlines()[0]}")
    missing = [line for worker, runs, *_ in results for line in lost(tracking, worker, runs)]
    if missing:
        raise WorkFailed(f"{len(missing)} metrics are lost, the first {missing[0]}")
    spent = sorted(second for _, _, spent, _ in results for second in spent)
    percentiles = statistics.quantiles(spent, n=100)
    return {
        "workers": workers,
        "seconds": elapsed,
        "runs": sum(len(runs) for _, runs, *_ in results),
        "requests": len(spent),
        "requests_per_second": len(spent) / elapsed,
        "metrics_per_second": len(spent) * len(METRICS) / elapsed,
        "milliseconds": {"median": 1000 * percentiles[49], "p99": 1000 * percentiles[98], "highest": 1000 * spent[-1]},
        "errors": 0,
        "lost_metrics": 0,
        # What else the machine did.
        "load_before": load,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
    }


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracking_load", description=__doc__.split("\n\n")[0])
    parser.add_argument("--workers", type=int, default=8, help="processes that log at once")
    parser.add_argument("--seconds", type=float, default=60, help="how long they log")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.workers < 1 or arguments.seconds <= 0:
        raise InputError("--workers and --seconds: give positive numbers")
    if not tracking_uri().startswith(("http://", "https://")):
        raise InputError("MLFLOW_TRACKING_URI names no server: give the address of the one to measure")
    measured = measure(arguments.workers, arguments.seconds)
    print(
        "{workers} workers, {requests_per_second:,.0f} requests and {metrics_per_second:,.0f} metrics per second; "
        "median {milliseconds[median]:.1f} ms, p99 {milliseconds[p99]:.1f} ms; {runs} runs, no error, no metric lost"
        "".format(**measured)
    )
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


if __name__ == "__main__":
    main()
