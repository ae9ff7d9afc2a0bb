"""Time preprocessing from raw text to int32 arrays: one process, two, Dask, scikit-learn and plain pandas.

python -m benchmarks.preprocessing [--data docstrings] [--repeats 5]

Every program starts from data/NAME/documents.jsonl. Each round runs all of them, so that other load affects all alike.
Our programs segment, count, number and write tokens.npy and its companions, process start included. CountVectorizer
(scikit-learn's defaults) and pandas read the same file and find words only, no sentences.

The figures are megabytes of raw text (UTF-8) per second of processor time over all processes, and per second of wall
time: median, lowest and highest over the rounds. Wall time is meaningful on an idle machine only. The run fails if our
programs write different bytes.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
from rich.console import Console
from rich.table import Table
from sklearn.feature_extraction.text import CountVectorizer

from reread.kinds.text import Settings
from reread.preprocessing.documents import prepare
from reread.preprocessing.manifest import open_data_set
from reread.preprocessing.raw_text import DOCUMENTS, TextDataSet
from reread.preprocessing.workers import Workers, use_workers
from reread.storage.errors import InputError, command
from reread.storage.files import sha256_file

WORD = r"\w+|[^\w\s]"


def ours(data: TextDataSet, processes: int | str) -> str:
    """Prepare ``data`` with so many processes, or by Dask; return the sha256 of tokens.npy."""
    with tempfile.TemporaryDirectory() as folder, use_workers(Workers(processes)):
        working = Path(folder)
        prepare(data, Settings(), working)
        return sha256_file(working / "tokens.npy")


def count_vectorizer(data: TextDataSet) -> None:
    with open(data.directory / DOCUMENTS, "rb") as lines:
        CountVectorizer().fit_transform(json.loads(line)["text"] for line in lines)


def plain_pandas(data: TextDataSet) -> np.ndarray:
    """Return int32 [N, W]: words seen at least five times in training; W is the 95th percentile of lengths; 0 pads."""
    frame = pandas.read_json(data.directory / DOCUMENTS, lines=True)
    words = frame["text"].str.lower().str.findall(WORD)
    training = words[frame["split"] == "train"]
    counts = training.explode().value_counts()
    index = {word: number for number, word in enumerate(counts.index[counts >= 5], 2)}
    kept = int(training.str.len().quantile(0.95))
    tokens = np.zeros((len(frame), kept), np.int32)
    for row, document in enumerate(words):
        numbers = [index.get(word, 1) for word in document[:kept]]
        tokens[row, : len(numbers)] = numbers
    return tokens


def seconds(do: Callable[[], object]) -> tuple[float, float, object]:
    """Return processor seconds of this process and its finished children, wall seconds, and the result of ``do``."""
    cpu, clock = processor_seconds(), time.perf_counter()
    result = do()
    return processor_seconds() - cpu, time.perf_counter() - clock, result


def processor_seconds() -> float:
    used = [resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def summary(megabytes: float, spent: list[float]) -> dict[str, float]:
    speeds = [megabytes / seconds for seconds in spent]
    return {"median": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds)}


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.preprocessing", description=__doc__.split("\n\n")[0])
    parser.add_argument("--data", default="docstrings", help="a text data set in data/")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, 1 or more")
    arguments = parser.parse_args()
    data = open_data_set(arguments.data)
    if not isinstance(data, TextDataSet) or arguments.repeats < 1:
        raise InputError("give a text data set, and one round or more")
    ways: dict[str, Callable[[], object]] = {
        "one process": lambda: ours(data, 1),
        "two processes": lambda: ours(data, 2),
        f"Dask, {len(os.sched_getaffinity(0))} workers": lambda: ours(data, "dask"),
        "scikit-learn's CountVectorizer": lambda: count_vectorizer(data),
        "plain pandas": lambda: plain_pandas(data),
    }
    megabytes = sum(len(document.text.encode()) for document in data.documents()) / 1e6
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    digests = set()
    for _ in range(arguments.repeats):
        for name, do in ways.items():
            cpu, clock, result = seconds(do)
            spent[name].append((cpu, clock))
            digests |= {result} if isinstance(result, str) else set()
    by_way = {
        name: {
            "megabytes_a_core_second": summary(megabytes, [cpu for cpu, _ in both]),
            "megabytes_a_second": summary(megabytes, [clock for _, clock in both]),
        }
        for name, both in spent.items()
    }
    if len(digests) != 1:
        raise RuntimeError(f"tokens.npy differs between ways of preparing: {sorted(digests)}")
    show(arguments.data, megabytes, arguments.repeats, by_way)
    about = {"data": data.name, "version": data.entry.version, "megabytes": megabytes, "n": arguments.repeats}
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "python": platform.python_version(),
    }
    print(json.dumps({**about, **machine, "tokens_sha256": digests.pop(), "ways": by_way}))


def show(name: str, megabytes: float, repeats: int, by_way: dict[str, dict[str, dict[str, float]]]) -> None:
    table = Table(title=f"{name}: {megabytes:.1f} MB of text, n = {repeats}, median [lowest, highest]")
    table.add_column("")
    table.add_column("MB per second and core", justify="right")
    table.add_column("MB per second (wall)", justify="right")
    for way, speeds in by_way.items():
        table.add_row(
            way,
            *(f"{speed['median']:.1f} [{speed['lowest']:.1f}, {speed['highest']:.1f}]" for speed in speeds.values()),
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
