"""Documents per second and latency of `reread serve model`, measured by a client on the same machine.

reread serve model docstrings --variant han        in another terminal
python -m benchmarks.serving --data docstrings

Raw documents of the data set's validation split are sent in three ways: in requests of many documents, one by one by
one client, and one by one by several clients at once, whose requests the server answers together. Connections stay
open. The client uses one of the machine's cores, too. Each way is warmed, then measured for --seconds. An answer that
is not 200 ends the benchmark.
"""

import argparse
import functools
import http.client
import itertools
import json
import os
import platform
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from reread.preprocessing.manifest import open_data_set
from reread.storage.errors import InputError, WorkFailed, command
from reread.storage.files import write_json
from reread.storage.prepared import SPLITS
from reread.storage.secret import project_secret

# Clients at once, and documents per request.
WAYS = {"in batches": (2, 64), "one by one": (1, 1), "one by one, 16 clients": (16, 1)}
WARMING = 0.2
SENT = 2048


def documents(data: str) -> list[str]:
    """Return the first SENT raw texts of the validation split; InputError where the data set has no texts."""
    opened = open_data_set(data)
    rows = np.flatnonzero(opened.split == SPLITS.index("validation"))[:SENT]
    texts: list[str] = opened.read(rows.tolist())
    if not len(texts) or not isinstance(texts[0], str):
        raise InputError(f"--data {data}: its validation split has no documents; name a data set of texts")
    return texts


@functools.cache
def known() -> dict[str, str]:
    """Return the header with the password of a server of this folder."""
    return {"Authorization": f"Bearer {project_secret()}"}


def send(address: str, bodies: "itertools.cycle[bytes]", lock: threading.Lock, until: float) -> list[float]:
    """Send requests until a time; return the seconds of each. WorkFailed on another answer than 200."""
    spent = []
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        while time.perf_counter() < until:
            with lock:
                body = next(bodies)
            before = time.perf_counter()
            connection.request("POST", "/predict", body, {"Content-Type": "application/json", **known()})
            answer = connection.getresponse()
            text = answer.read()
            spent.append(time.perf_counter() - before)
            if answer.status != 200:
                raise WorkFailed(f"{address} answers {answer.status}: {text[:200].decode(errors='replace')}")
    finally:
        connection.close()
    return spent


def measure(address: str, texts: list[str], clients: int, rows: int, seconds: float) -> dict[str, Any]:
    """Send ``rows`` documents per request by ``clients`` at once for ``seconds``."""
    sets = [texts[start : start + rows] for start in range(0, len(texts) - rows + 1, rows)]
    bodies = itertools.cycle([json.dumps({"rows": documents}).encode() for documents in sets])
    lock = threading.Lock()
    with ThreadPoolExecutor(clients) as pool:
        for length in (seconds * WARMING, seconds):
            start = time.perf_counter()
            futures = [pool.submit(send, address, bodies, lock, start + length) for _ in range(clients)]
            spent = [second for future in futures for second in future.result()]
            elapsed = time.perf_counter() - start
    percentiles = statistics.quantiles(spent, n=100)
    return {
        "clients": clients,
        "documents_per_request": rows,
        "requests": len(spent),
        "documents_per_second": len(spent) * rows / elapsed,
        "milliseconds": {"median": 1000 * percentiles[49], "p99": 1000 * percentiles[98], "highest": 1000 * max(spent)},
    }


def about(address: str) -> dict[str, Any]:
    """Return the model that answers there; InputError where none does."""
    try:
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/health", headers=known())
        answer: dict[str, dict[str, Any]] = json.loads(connection.getresponse().read())
        return answer["model"]
    except (OSError, ValueError, KeyError):
        raise InputError(f"--url: no `reread serve model` answers at {address}: start it first") from None


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__.split("\n\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="the page of the server")
    parser.add_argument("--data", default="docstrings", help="the data set whose documents are sent")
    parser.add_argument("--seconds", type=float, default=20, help="how long each way is measured")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.seconds <= 0:
        raise InputError("--seconds: give a positive number")
    address = urlsplit(arguments.url).netloc
    measured = {"model": about(address), "data": arguments.data, "load_before": os.getloadavg()[0]}
    texts = documents(arguments.data)
    measured["ways"] = {way: measure(address, texts, *how, arguments.seconds) for way, how in WAYS.items()}
    measured |= {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
    for way, result in measured["ways"].items():
        print(
            "{way}: {documents_per_second:,.0f} documents per second; median {milliseconds[median]:.1f} ms, p99 "
            "{milliseconds[p99]:.1f} ms per request of {documents_per_request}".format(way=way, **result)
        )
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


if __name__ == "__main__":
    main()
