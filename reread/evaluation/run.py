"""Measure one finished run: probabilities and metrics of each split, and the time per row.

runs/KEY/evaluation/EVAL_KEY/ holds metrics.json and SPLIT.npy (float32 probabilities [rows, K]), which are equal byte
for byte on one kind of device, and latency.json, which is not. A run that a GPU trained is evaluated on a GPU where
this machine has one, under the GPU lease and by deterministic kernels, else on the CPU with one thread. Latency is
always measured on the CPU.
"""

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

import models
from cuda_ext import library
from models.layers import parameter_count
from models.objectives import DEFAULT, Objective, to_probabilities
from reread import goals, kinds
from reread.batches.inference import predict
from reread.runtime.determinism import determinism, threads
from reread.runtime.gpu_lease import acquire_gpu
from reread.storage.digests import digested_directory as published_directory
from reread.storage.errors import InputError
from reread.storage.files import content_key, read_object, write_json
from reread.storage.locks import file_lock, run_lock
from reread.storage.numeric import Numeric, numeric_source
from reread.storage.prepared import DESCRIPTION, SPLITS, Prepared, open_prepared
from reread.storage.run_folder import LATENCY, METRICS, RunFolder

BATCH_SIZE = 64
LATENCY_ROWS = 32
LATENCY_REPEATS = 5


def evaluation_key(
    run: RunFolder, splits: Sequence[str] = ("validation", "test"), machine: dict[str, Any] | None = None
) -> str:
    """Return the name of an evaluation's folder, of all that its results depend on.

    They are the run, the splits, the source of the evaluation, the machine that predicts (default: the CPU here), and
    on a GPU the kernels that the network calls.
    The appearance of reports is no part of it.
    """
    machine = machine or machine_here(torch.device("cpu"))
    objective = run.job.get("training", {}).get("objective", DEFAULT)["name"]
    task = task_of(run)
    kernels = {}
    if str(machine["kernels"]).startswith("extension"):
        network = numeric_source(models.source_modules(run.job["model"], run.job["network"]))
        kernels = {"kernels": {**source(objective, task).kernels, **network.kernels}}
    return content_key(
        {
            **kernels,
            "run": run.job.get("run_key"),
            "splits": sorted(splits),
            "source": source(objective, task).digest,
            "machine": machine,
        }
    )


def source(objective: str, task: str | None) -> Numeric:
    """Return the code that decides an evaluation's results, the networks left out."""
    of_goal = [goals.module_of(task)] if task else []
    return numeric_source(["reread.evaluation.run", "reread.batches", f"models.objectives.{objective}", *of_goal])


def task_of(run: RunFolder) -> str | None:
    """Return the task of the data that a run was trained on; None where its prepared arrays are not here."""
    description = Path(run.job.get("prepared", "")) / DESCRIPTION
    return str(read_object(description, "task")["task"]) if description.is_file() else None


def machine_here(device: torch.device) -> dict[str, Any]:
    """Describe what predictions on ``device`` depend on: torch, numpy, and the GPU with its kernels."""
    gpu = device.type == "cuda"
    return {
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gpu": torch.cuda.get_device_name(device) if gpu else None,
        "kernels": library.implementation(library.kernels(device)) if gpu else None,
    }


def training_machine(run: RunFolder) -> dict[str, Any]:
    """Return the same of the machine that trained a run; empty values where environment.json does not have them."""
    about = {name: run.environment.get(name) for name in ("torch", "numpy", "gpu", "kernels")}
    return {**about, "kernels": library.implementation(about["kernels"]) if about["kernels"] else None}


def this_gpu() -> torch.device | None:
    """Return this machine's current GPU, or None."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def find_evaluation(run_directory: Path, splits: Sequence[str] = ("validation", "test")) -> Path | None:
    """Return a run's evaluation that exists already, or None.

    One made where the run was trained comes first, then one of this machine's GPU if a GPU trained the run, then one of
    the CPU.
    """
    run = RunFolder(Path(run_directory))
    trained_on = training_machine(run)
    machines = [trained_on]
    if trained_on["gpu"] and (gpu := this_gpu()):
        machines.append(machine_here(gpu))
    machines.append(machine_here(torch.device("cpu")))
    folders = [run.evaluation(evaluation_key(run, splits, machine)) for machine in machines]
    return next((folder for folder in folders if (folder / METRICS).is_file()), None)


def evaluate_run(
    run_directory: Path,
    prepared_directory: Path,
    splits: Sequence[str] = ("validation", "test"),
    latencies: dict[str, dict[str, Any]] | None = None,
) -> Path:
    """Evaluate the best weights of a finished run and return its evaluation folder; at once where it exists.

    A split that is not named is not read, so that an experiment that tunes can leave the test split alone. latencies:
    those that were measured here already, by network; a run of the same network takes them. InputError
    where the run is not finished, its weights are missing or changed, the code of its network has changed, or the
    prepared arrays are missing or damaged.
    """
    run = RunFolder(Path(run_directory))
    unknown = [split for split in splits if split not in SPLITS]
    if unknown or not splits:
        raise InputError(f"no such split: {', '.join(unknown) or 'none given'}; choose from: {', '.join(SPLITS)}")
    existing = find_evaluation(run.directory, splits)
    if existing:
        return existing
    run.require_result()
    if not run.weights.is_file():
        option = " --test" if "test" in splits else ""
        raise InputError(
            f"{run.directory} has no {run.weights.name} and no evaluation of the {' and '.join(splits)} split by this "
            f"source: run `python -m reread.evaluation{option} {run.directory}` where its weights are, and copy "
            "evaluation/ here"
        )
    prepared = open_prepared(prepared_directory)
    # The run's lock keeps `reread prune` from removing the run meanwhile.
    with file_lock(run_lock(run.directory)), _device_for(run) as device, threads(1), determinism():
        destination = run.evaluation(evaluation_key(run, splits, machine_here(device)))
        network: nn.Module = models.load(run.directory, prepared.description).to(device)
        with published_directory(destination) as working:
            probabilities = {}
            for split in splits:
                scores = predict(network, prepared, prepared.rows(split), BATCH_SIZE)
                probabilities[split] = to_probabilities(cast(Objective, network.objective), scores)
                np.save(working / f"{split}.npy", probabilities[split], allow_pickle=False)
            labels = {split: prepared.labels[prepared.rows(split)] for split in splits}
            metrics = goals.goal(prepared.task).measure(probabilities, labels, prepared.classes)
            write_json(working / METRICS, {"parameters": parameter_count(network), **metrics})
            latencies = {} if latencies is None else latencies
            about = content_key({name: run.job.get(name) for name in ("model", "network", "prepared")})
            if about not in latencies:
                latencies[about] = {"run": run.key, **latency(network.cpu(), prepared, splits[0])}
            write_json(working / LATENCY, latencies[about])
    return destination


def _device_for(run: RunFolder) -> contextlib.AbstractContextManager[torch.device]:
    """A leased GPU for a run that a GPU trained, where this machine has one; else the CPU."""
    if not training_machine(run)["gpu"]:
        return contextlib.nullcontext(torch.device("cpu"))
    return acquire_gpu(run.job.get("runs_per_gpu", 1))


def latency(network: nn.Module, prepared: Prepared, split: str) -> dict[str, Any]:
    """Measure seconds per document or image, one by one and in one batch: the median of repeats after a warm-up."""
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
