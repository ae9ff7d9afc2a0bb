"""Documents per second of prediction on a CPU: one by one and in batches, on one core, and on two in two ways.

python -m benchmarks.prediction --model runs/KEY        a trained network, on the validation documents of its data
python -m benchmarks.prediction --prepared prepared/KEY    an untrained HAN of --embedding and --hidden, likewise

Timed is the span from raw text to what a served model answers, attention included (what MLflow and HTTP add is not).
Weights do not change how long it takes.

Each way of using the cores has its own processes, started and warmed before; each round does all of them, so that what
else the machine does meets all alike. Figures are the median of the rounds with the lowest and highest.
"""

import argparse
import json
import os
import platform
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from models.objectives import DEFAULT, make_objective
from reread.batches import answers
from reread.kinds import Reader, reader
from reread.preprocessing.manifest import open_data_set
from reread.storage.errors import InputError, command
from reread.storage.files import read_json, read_object, write_json
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.run_folder import JOB

# Documents per batch, and documents per round: enough that a round on two cores takes about a second.
BATCHES = {1: 64, 128: 512}
# Processes and threads of each. Threads are those of PyTorch: text is read by one.
WAYS = {"1 process": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement: a network, the prepared rows that it reads, and their raw texts."""

    network: "models.Network"
    prepared: Prepared
    rows: np.ndarray
    texts: list[str]
    reader: Reader

    def answer(self, places: np.ndarray, batch: int) -> None:
        for start in range(0, len(places), batch):
            texts = [self.texts[place] for place in places[start : start + batch]]
            reading = self.reader.read(texts)
            prepared = Prepared(Path(), self.prepared.description, dict(reading.arrays))
            if reading.words is not None and answers.attends(self.network):
                answers.answer_with_attention(self.network, prepared, reading.words)
            else:
                answers.answer(self.network, prepared)


def open_subject(run: str | None, folder: str, network: dict[str, int]) -> Subject:
    """The subject of a run, or where that is None an untrained HAN on the arrays of ``folder``."""
    if run is not None:
        job = read_object(Path(run) / JOB, "prepared")
        prepared = open_prepared(Path(job["prepared"]))
        loaded = models.load(Path(run), prepared.description)
    else:
        prepared = open_prepared(Path(folder))
        torch.manual_seed(0)
        loaded = models.build("han", network, prepared.description).eval()
        loaded.objective = make_objective(DEFAULT, prepared.description)
    if prepared.kind != "text":
        raise InputError(f"{run or folder} is of image data: name one of documents")
    rows = prepared.rows("validation")
    data = open_data_set(prepared.description["name"])
    texts = list(data.read(prepared.arrays["raw_indices"][rows].tolist()))
    return Subject(loaded, prepared, rows, texts, reader("text")(prepared.directory, prepared.description))


# In a process of its own

_subject: Subject


def start(threads: int, *about: Any) -> None:
    global _subject
    torch.set_num_threads(threads)
    _subject = open_subject(*about)


def work(places: np.ndarray, batch: int) -> float:
    """Do it, and return the seconds of processor time that it took, of all threads."""
    before = time.process_time()
    _subject.answer(places, batch)
    return time.process_time() - before


# Here


def measure(subject: Subject, about: tuple[Any, ...], rounds: int) -> list[dict[str, Any]]:
    """Time every batch and way, ``rounds`` times; one mapping each, with documents per second."""
    context = get_context("spawn")
    pools = {
        way: [ProcessPoolExecutor(1, context, start, (threads, *about)) for _ in range(processes)]
        for way, (processes, threads) in WAYS.items()
    }
    spent: dict[tuple[int, str], list[tuple[float, float]]] = {(batch, way): [] for batch in BATCHES for way in WAYS}
    try:
        for number in range(rounds + 1):
            for (batch, way), times in spent.items():
                places = np.arange(BATCHES[batch]) % len(subject.rows)
                before = time.perf_counter()
                processor = on_cores(pools[way], places, batch)
                # The first round is for warming up.
                times += [(time.perf_counter() - before, processor)] if number else []
    finally:
        for processes in pools.values():
            for pool in processes:
                pool.shutdown()
    return [
        {
            "span": "answer",
            "batch": batch,
            "way": way,
            "n": rounds,
            "documents_a_second": summary([BATCHES[batch] / clock for clock, _ in both]),
            "documents_a_core_second": summary([BATCHES[batch] / processor for _, processor in both]),
        }
        for (batch, way), both in spent.items()
    ]


def summary(speeds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds)}


def on_cores(processes: list[ProcessPoolExecutor], places: np.ndarray, batch: int) -> float:
    """Let each process do an equal share of the documents, all at the same time; return their processor time."""
    shares = np.array_split(places, len(processes))
    futures = [pool.submit(work, share, batch) for pool, share in zip(processes, shares, strict=True)]
    return sum(future.result() for future in futures)


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", metavar="RUN", help="a folder of runs/")
    what.add_argument("--prepared", metavar="FOLDER", help="a folder of prepared/, for an untrained HAN")
    parser.add_argument("--embedding", type=int, default=200, help="of the untrained HAN")
    parser.add_argument("--hidden", type=int, default=50, help="of the untrained HAN")
    parser.add_argument("--rounds", type=int, default=7, help="1 or more")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        raise InputError("--rounds: give 1 or more")
    network = {"embedding_dim": arguments.embedding, "hidden_size": arguments.hidden}
    about = (arguments.model, arguments.prepared, network)
    subject = open_subject(*about)
    counts = subject.prepared.arrays["word_counts"][subject.rows]
    measured = {
        "data": subject.prepared.description["name"],
        "network": read_json(Path(arguments.model) / JOB)["network"] if arguments.model else network,
        "trained": arguments.model is not None,
        "words_a_document": float(counts.sum(axis=1).mean()),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "results": measure(subject, about, arguments.rounds),
    }
    print(table(measured))
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def table(measured: dict[str, Any]) -> str:
    """The figures as a Markdown table, and for each batch the best use of two cores."""
    columns = ["batch", "way", "documents per second", "documents per second of processor time", "n"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    results = measured["results"]
    for result in results:
        speeds = (result["documents_a_second"], result["documents_a_core_second"])
        shown = ["{median:,.0f} [{lowest:,.0f}, {highest:,.0f}]".format(**speed) for speed in speeds]
        lines.append(f"| {' | '.join([str(result['batch']), result['way'], *shown, str(result['n'])])} |")
    for batch in BATCHES:
        of_batch = (result for result in results if result["batch"] == batch)
        best = max(of_batch, key=lambda result: result["documents_a_second"]["median"])
        lines.append(f"best, batch {batch}: {best['way']}, {best['documents_a_second']['median']:,.0f} per second")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
