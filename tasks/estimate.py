"""How long training will take on this machine, measured on a few steps of each variant."""

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

STEPS = 4


def training_seconds(jobs: Iterable[Mapping[str, Any]], workers: int) -> dict[str, float]:
    """Return the seconds that ``jobs`` (of ``Plan.jobs``) take at most, ``workers`` runs at once, by variant.

    That is all their epochs. The trials of a variant count as it. Jobs that differ in their seed alone are measured
    once. Validation adds a third of a training row's time per row.
    """
    seconds: dict[str, float] = {}
    total: dict[str, float] = {}
    for job in jobs:
        if job["variant"] not in seconds:
            seconds[job["variant"]] = epoch_seconds(job)
        name = job["variant"].partition("/")[0]
        total[name] = total.get(name, 0.0) + seconds[job["variant"]] * job["training"]["max_epochs"] / workers
    return total


def epoch_seconds(job: Mapping[str, Any]) -> float:
    """Return the seconds of one epoch of a job on one thread of this machine's CPU, or on its GPU."""
    import torch

    import models
    from batches import collation
    from models.objectives import make_objective
    from storage.prepared import open_prepared

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared = open_prepared(Path(job["prepared"]), verify=False)
    rows = prepared.rows("train")
    objective = make_objective(job["training"]["objective"], prepared.description, prepared.labels[rows])
    with torch.random.fork_rng():
        network = models.build(job["model"], job["network"], prepared.description).to(device).train()
        generator = np.random.default_rng(0)
        size = min(job["training"]["batch_size"], len(rows))
        taken = []
        for _ in range(STEPS):
            start = time.perf_counter()
            batch = generator.choice(rows, size, replace=False)
            inputs = collation.inputs(prepared, batch, device)
            target = collation.labels(prepared, batch, device)
            loss = objective.loss(network, network(*inputs), target, inputs)
            loss.backward()
            float(loss.detach())  # waits for a GPU
            taken.append(time.perf_counter() - start)
    per_row = median(taken[1:]) / size
    return per_row * (len(rows) + len(prepared.rows("validation")) / 3)
