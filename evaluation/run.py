"""One finished run, measured: probabilities and metrics of each split, and the time that a row takes.

runs/KEY/evaluation/EVAL_KEY/ holds metrics.json and SPLIT.npy (float32 probabilities [rows, K]), which are equal byte
for byte on one kind of device, and latency.json, which is not. Predictions are made where the run was trained: on a
GPU if that was one and this machine has one, by deterministic kernels, and the key says which; else on the CPU in one
thread. Latency is always the CPU's.
"""

import contextlib
import functools
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import kinds
import models
from batches.inference import predict
from evaluation.metrics import split_metrics
from models.layers import parameter_count
from models.objectives import to_probabilities
from storage.errors import InputError
from storage.files import content_key, published_directory, read_json, write_json
from storage.locks import file_lock, run_lock
from storage.prepared import SPLITS, Prepared, open_prepared
from storage.source import source_digests

WEIGHTS = "best.safetensors"
METRICS = "metrics.json"
LATENCY = "latency.json"
BATCH_SIZE = 64
LATENCY_ROWS = 32
LATENCY_REPEATS = 5


def evaluation_key(splits: Sequence[str] = ("validation", "test"), gpu: str | None = None) -> str:
    """The name of the evaluation's folder: the source that its results depend on, the splits that it reads, the GPU.

    gpu: the name of the one that predicts, None for the CPU. The looks of the report are no part of it. The weights and
    data are the run's, whose folder it lies in.
    """
    determined_by = {"splits": sorted(splits), "source": source()}
    return content_key(determined_by if gpu is None else {**determined_by, "gpu": gpu})


@functools.cache
def source() -> dict[str, str]:
    """sha256 of each source file that an evaluation's results depend on."""
    return source_digests(["evaluation.run", "batches"])


def trained_on(run_directory: Path) -> str | None:
    """The name of the GPU that a run was trained on; None where that was the CPU, or nothing says."""
    path = Path(run_directory) / "environment.json"
    return read_json(path).get("gpu") if path.is_file() else None


def gpu_here() -> str | None:
    """The name of this machine's GPU, on which predictions are made; None where there is none."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def find_evaluation(run_directory: Path, splits: Sequence[str] = ("validation", "test")) -> Path | None:
    """The evaluation of a run that is there already: one made where it was trained, on this machine's GPU if it was
    trained on another, or on a CPU; None where there is none."""
    there = trained_on(run_directory)
    found = [
        Path(run_directory) / "evaluation" / evaluation_key(splits, gpu)
        for gpu in dict.fromkeys((there, there and gpu_here(), None))
    ]
    return next((folder for folder in found if (folder / METRICS).is_file()), None)


def evaluate_run(run_directory: Path, prepared_directory: Path, splits: Sequence[str] = ("validation", "test")) -> Path:
    """Evaluate the best weights of a finished run and return its evaluation folder; at once if it is there.

    A split that is not named is not read, so that an experiment that tunes can leave the test split alone.
    InputError when the run is not finished, its weights are not here, or the prepared arrays are missing or damaged.
    """
    run_directory = Path(run_directory)
    unknown = [split for split in splits if split not in SPLITS]
    if unknown or not splits:
        raise InputError(f"no such split: {', '.join(unknown) or 'none given'}; choose from: {', '.join(SPLITS)}")
    found = find_evaluation(run_directory, splits)
    if found:
        return found
    if not (run_directory / "result.json").is_file():
        raise InputError(f"{run_directory} has no result.json: the run has not finished, train it again to go on")
    if not (run_directory / WEIGHTS).is_file():
        named = " --test" if "test" in splits else ""
        raise InputError(
            f"{run_directory} has neither an evaluation of the {' and '.join(splits)} split by this source nor weights:"
            f" run `python -m evaluation{named} {run_directory}` where its weights are, and copy evaluation/ here"
        )
    prepared = open_prepared(prepared_directory)
    gpu = trained_on(run_directory) and gpu_here()
    device = torch.device("cuda" if gpu else "cpu")
    destination = run_directory / "evaluation" / evaluation_key(splits, gpu)
    # prune removes no run while its lock is held.
    with file_lock(run_lock(run_directory)), one_thread(), deterministic(device):
        network = models.load(run_directory, prepared.description).to(device)
        with published_directory(destination) as working:
            metrics: dict[str, Any] = {"parameters": parameter_count(network)}
            for split in splits:
                rows = prepared.rows(split)
                probabilities = to_probabilities(network.objective, predict(network, prepared, rows, BATCH_SIZE))
                metrics[split] = split_metrics(probabilities, prepared.labels[rows], prepared.task, prepared.classes)
                np.save(working / f"{split}.npy", probabilities, allow_pickle=False)
            write_json(working / METRICS, metrics)
            write_json(working / LATENCY, latency(network.cpu(), prepared, splits[0]))
    return destination


def latency(network: nn.Module, prepared: Prepared, split: str) -> dict[str, Any]:
    """Seconds a document or image, one by one and in one batch: the median of repeats after one unmeasured."""
    rows = prepared.rows(split)[:LATENCY_ROWS]

    def median_seconds(batch_size: int) -> float:
        seconds = []
        for _ in range(LATENCY_REPEATS + 1):
            start = time.perf_counter()
            predict(network, prepared, rows, batch_size)
            seconds.append((time.perf_counter() - start) / len(rows))
        return float(np.median(seconds[1:]))

    return {
        "unit": f"seconds per {kinds.kind(prepared.kind).row}",
        "one_by_one": median_seconds(1),
        "in_one_batch": median_seconds(len(rows)),
        "rows": len(rows),
        "repeats": LATENCY_REPEATS,
        "device": "cpu",
        "threads": 1,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread inside the block: sums come in one order, and two evaluations at a time lose nothing."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """On a GPU, kernels inside the block are repeatable, and an operation that has none is refused."""
    if device.type == "cpu":
        yield
        return
    # cuBLAS reads it when it is first used; training sets the same.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    filling = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
        torch.utils.deterministic.fill_uninitialized_memory = filling
