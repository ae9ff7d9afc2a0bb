"""Documents per second of prediction: one by one and in batches, on one core, on two in two ways, and on a GPU.

python -m benchmarks.prediction --model runs/KEY        a trained network, on the validation documents of its data
python -m benchmarks.prediction --prepared prepared/KEY    an untrained HAN of --embedding and --hidden, likewise
python -m benchmarks.prediction                         the same on drawn documents, of 20 sentences of 3 to 30 words

Two spans are timed. ``answer``: from raw text to what a served model answers, attention included (what MLflow and HTTP
add is not). ``network``: from words in prepared arrays to logits. Without the raw data, or where Bling Fire is not
installed, only the second. Weights do not change how long it takes.

Each way of using the cores has its own processes, started and warmed before; each round does all of them, so that what
else the machine does meets all alike. Figures are the median of the rounds with the lowest and highest.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from cuda_ext import library
from models.objectives import DEFAULT, make_objective
from reread.batches import answers, inference
from reread.kinds import Reader, reader
from reread.storage.errors import InputError, command
from reread.storage.files import read_json, read_object, write_json
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.run_folder import JOB

# Documents per batch, and documents per round: enough that a round on two cores takes about a second.
ON_CPU = {1: 64, 128: 512}
ON_GPU = {1: 256, 128: 4096, 1024: 16384}
# Processes and threads of each. Threads are those of PyTorch: text is read by one.
WAYS = {"1 process": (1, 1), "1 process, 2 threads": (1, 2), "2 processes": (2, 1)}
VOCABULARY, CLASSES = 50_000, 5
SENTENCES, WORDS = 20, 30
DRAWN = 1024


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement: a network, the prepared rows that it reads, and their raw texts, if any."""

    network: "models.Network"
    prepared: Prepared
    rows: np.ndarray
    texts: list[str]
    reader: Reader | None

    def answer(self, places: np.ndarray, batch: int) -> None:
        assert self.reader is not None
        for start in range(0, len(places), batch):
            texts = [self.texts[place] for place in places[start : start + batch]]
            reading = self.reader.read(texts)
            prepared = Prepared(Path(), self.prepared.description, dict(reading.arrays))
            if reading.words is not None and answers.attends(self.network):
                answers.answer_with_attention(self.network, prepared, reading.words)
            else:
                answers.answer(self.network, prepared)

    def read(self, places: np.ndarray, batch: int) -> None:
        for start in range(0, len(places), batch):
            inference.predict(self.network, self.prepared, self.rows[places[start : start + batch]], batch)

    def spans(self) -> dict[str, Callable[[np.ndarray, int], None]]:
        return {"network": self.read} | ({"answer": self.answer} if self.texts else {})


def open_subject(run: str | None, folder: str | None, network: dict[str, int]) -> Subject:
    """The subject of a run, or an untrained HAN on the arrays of ``folder``, or on drawn ones where that is None."""
    if run is not None:
        job = read_object(Path(run) / JOB, "prepared")
        prepared = open_prepared(Path(job["prepared"]))
        loaded = models.load(Path(run), prepared.description)
    else:
        prepared = drawn() if folder is None else open_prepared(Path(folder))
        torch.manual_seed(0)
        loaded = models.build("han", network, prepared.description).eval()
        loaded.objective = make_objective(DEFAULT, prepared.description)
    if prepared.kind != "text":
        raise InputError(f"{run or folder} is of image data: name one of documents")
    rows = prepared.rows("validation")
    texts = raw_texts(prepared, rows)
    reading = reader("text")(prepared.directory, prepared.description) if texts else None
    return Subject(loaded, prepared, rows, texts, reading)


def raw_texts(prepared: Prepared, rows: np.ndarray) -> list[str]:
    """The texts of ``rows``; none where the data or the tokeniser is not here."""
    if "raw_indices" not in prepared.arrays:
        return []
    try:
        from reread.preprocessing import reading  # noqa: F401
        from reread.preprocessing.manifest import open_data_set

        return list(open_data_set(prepared.description["name"]).read(prepared.arrays["raw_indices"][rows].tolist()))
    except (ImportError, InputError):
        return []


def drawn() -> Prepared:
    """Documents of 20 sentences of 3 to 30 words, all of them uniformly drawn."""
    random = np.random.default_rng(0)
    word_counts = random.integers(3, WORDS + 1, (DRAWN, SENTENCES), np.int32)
    arrays = {
        "tokens": random.integers(2, VOCABULARY, word_counts.sum(), np.int32),
        "word_counts": word_counts,
        "sentence_counts": np.full(DRAWN, SENTENCES, np.int32),
    }
    about = {"kind": "text", "name": "drawn", "task": "single-label", "vocabulary_size": VOCABULARY}
    about |= {"classes": [str(label) for label in range(CLASSES)], "splits": {"validation": [0, DRAWN]}}
    return Prepared(Path(), about, arrays)


# In a process of its own

_subject: Subject


def start(threads: int, *about: Any) -> None:
    global _subject
    torch.set_num_threads(threads)
    _subject = open_subject(*about)


def work(span: str, places: np.ndarray, batch: int) -> float:
    """Do it, and return the seconds of processor time that it took, of all threads."""
    before = time.process_time()
    _subject.spans()[span](places, batch)
    return time.process_time() - before


# Here


def measure(subject: Subject, about: tuple[Any, ...], rounds: int) -> list[dict[str, Any]]:
    """Time every span, batch and way, ``rounds`` times; one mapping each, with documents per second."""
    context = get_context("spawn")
    pools = {
        way: [ProcessPoolExecutor(1, context, start, (threads, *about)) for _ in range(processes)]
        for way, (processes, threads) in WAYS.items()
    }
    cases: dict[tuple[str, int, str], tuple[int, Callable[[], float]]] = {}
    for span in subject.spans():
        for batch, count in ON_CPU.items():
            for way, processes in pools.items():
                cases[span, batch, way] = (count, on_cores(subject, processes, span, count, batch))
    if torch.cuda.is_available():
        subject.network.cuda()
        for span, do in subject.spans().items():
            for batch, count in ON_GPU.items():
                cases[span, batch, "GPU"] = (count, on_gpu(subject, do, count, batch))
    spent: dict[tuple[str, int, str], list[tuple[float, float]]] = {case: [] for case in cases}
    try:
        for number in range(rounds + 1):
            for case, (_, run) in cases.items():
                before = time.perf_counter()
                processor = run()
                # The first round is for warming up.
                spent[case] += [(time.perf_counter() - before, processor)] if number else []
    finally:
        for processes in pools.values():
            for pool in processes:
                pool.shutdown()
    results = []
    for (span, batch, way), both in spent.items():
        count = cases[span, batch, way][0]
        result = {"span": span, "batch": batch, "way": way, "n": rounds}
        result["documents_a_second"] = summary([count / clock for clock, _ in both])
        if way in WAYS:
            result["documents_a_core_second"] = summary([count / processor for _, processor in both])
        results.append(result)
    return results


def summary(speeds: list[float]) -> dict[str, float]:
    return {"median": statistics.median(speeds), "lowest": min(speeds), "highest": max(speeds)}


def on_cores(
    subject: Subject, processes: list[ProcessPoolExecutor], span: str, count: int, batch: int
) -> Callable[[], float]:
    """Each process does an equal share of the documents, all at the same time; returns their processor time."""
    shares = np.array_split(np.arange(count) % len(subject.rows), len(processes))

    def run() -> float:
        futures = [pool.submit(work, span, share, batch) for pool, share in zip(processes, shares, strict=True)]
        return sum(future.result() for future in futures)

    return run


def on_gpu(subject: Subject, do: Callable[[np.ndarray, int], None], count: int, batch: int) -> Callable[[], float]:
    """In this process, whose network is on the GPU; what it says comes back to the CPU, which waits for it.

    No processor time is measured.
    """
    places = np.arange(count) % len(subject.rows)

    def run() -> float:
        do(places, batch)
        return math.nan

    return run


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__.split("\n\n")[0])
    what = parser.add_mutually_exclusive_group()
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
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "kernels": library.kernels(torch.device("cuda", 0)) if torch.cuda.is_available() else None,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "results": measure(subject, about, arguments.rounds),
    }
    print(table(measured))
    print(json.dumps(measured))
    if arguments.json:
        write_json(arguments.json, measured)


def table(measured: dict[str, Any]) -> str:
    """The figures as a Markdown table, and for each span and batch the best use of two cores."""
    columns = ["timed", "batch", "way", "documents per second", "documents per second of processor time", "n"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    best: dict[str, dict[str, Any]] = {}
    for result in measured["results"]:
        speeds = [result["documents_a_second"], result.get("documents_a_core_second")]
        shown = [
            "" if speed is None else "{median:,.0f} [{lowest:,.0f}, {highest:,.0f}]".format(**speed) for speed in speeds
        ]
        cells = [result["span"], str(result["batch"]), result["way"], *shown, str(result["n"])]
        lines.append(f"| {' | '.join(cells)} |")
        case = f"{result['span']}, batch {result['batch']}"
        median = result["documents_a_second"]["median"]
        if result["way"] in WAYS and median > best.get(case, {"median": 0})["median"]:
            best[case] = {"way": result["way"], "median": median}
    for case, fastest in best.items():
        lines.append(f"best on the CPU, {case}: {fastest['way']}, {fastest['median']:,.0f} per second")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
