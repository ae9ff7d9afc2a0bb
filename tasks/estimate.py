"""About how long training will take on this machine, measured on a few steps of each variant."""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from reread.planning.plan import job_settings

STEPS = 6
BUSY = 0.9  # the share of a core below which other work slows a process down


def training_seconds(jobs: Iterable[Mapping[str, Any]], workers: int) -> tuple[dict[str, float], float]:
    """Return the seconds that ``jobs`` (of ``Plan.jobs``) take, ``workers`` runs at once, by variant, and their share.

    That is all their epochs: a run may end earlier. The trials of a variant count as it, each as its slowest one. Jobs
    that differ in their seed alone are measured once. The share is of the CPU time that a run could have, beside the
    other work on this machine. Validation adds a third of a training row's time per row.
    """
    jobs = list(jobs)
    measured: dict[str, tuple[float, float]] = {}
    for job in jobs:
        if job["variant"] not in measured:
            measured[job["variant"]] = epoch_seconds(job)
    share = fmean(share for _, share in measured.values()) if measured else 1.0
    slower, share = slowdown(share, workers, len(os.sched_getaffinity(0)))
    slowest: dict[str, float] = {}
    for variant, (seconds, _) in measured.items():
        name = variant.partition("/")[0]
        slowest[name] = max(slowest.get(name, 0.0), seconds)
    total: dict[str, float] = {}
    for job in jobs:
        name = job["variant"].partition("/")[0]
        total[name] = total.get(name, 0.0) + slower * slowest[name] * job["training"]["max_epochs"] / workers
    return total, share


def slowdown(share: float, workers: int, cores: int) -> tuple[float, float]:
    """Return how many times slower each of ``workers`` processes is than one alone, and the share of a core it gets.

    share: of a core, that one process got while it was measured. Cores are shared evenly: beside ``others`` at work one
    process gets cores / (others + 1) of one.
    """
    others = cores / share - 1 if share < BUSY else 0.0
    together = min(1.0, cores / (others + workers))
    return (share if share < BUSY else 1.0) / together, together


def epoch_seconds(job: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds of one epoch of a job here, alone, and the share of a core's time that the process got.

    It is measured with the job's threads on the CPU, or on the GPU, where the share is not known and 1.
    """
    import torch

    import models
    from models.objectives import make_objective
    from reread.batches import collation
    from reread.runtime.determinism import threads
    from reread.storage.prepared import open_prepared
    from reread.training.optimisers import make_optimiser
    from reread.training.step import Step

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared = open_prepared(Path(job["prepared"]), verify=False)
    rows = prepared.rows("train")
    _, settings = job_settings(job)
    objective = make_objective(settings.objective, prepared.description, prepared.labels[rows])
    with torch.random.fork_rng(), threads(settings.threads):
        network = models.build(job["model"], job["network"], prepared.description).to(device).train()
        step = Step(network, objective, make_optimiser(network, settings), settings, device)
        generator = np.random.default_rng(0)
        size = min(settings.batch_size, len(rows))
        taken, cpu = [], []
        for _ in range(STEPS):
            start, process = time.perf_counter(), time.process_time()
            batch = generator.choice(rows, size, replace=False)
            inputs, target = collation.inputs(prepared, batch, device), collation.labels(prepared, batch, device)
            float(step(inputs, target, settings.learning_rate).loss)  # waits for a GPU
            taken.append(time.perf_counter() - start)
            cpu.append(time.process_time() - process)
    per_row = median(taken[1:]) / size
    share = 1.0 if device.type == "cuda" else min(1.0, sum(cpu[1:]) / sum(taken[1:]) / settings.threads)
    return per_row * (len(rows) + len(prepared.rows("validation")) / 3), share
