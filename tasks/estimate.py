"""About how long training and evaluation will take on this machine, measured on real steps of each variant."""

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from reread.planning.plan import job_settings
from reread.storage.errors import InputError
from reread.storage.job import Job

STEPS = 8  # the fewest that are timed, where an epoch has so many; batches of texts differ in length
SECONDS = 1.0  # for which steps are timed
VALIDATED = 256  # rows of validation that are timed
FITTED = {"train": 400, "validation": 100}  # rows on which a baseline is fitted
BUSY = 0.9  # the share of a core below which other work slows a process down


@dataclass(frozen=True)
class Measurement:
    """Times of one job, in seconds on the clock.

    steps: of each training step, with the loading of its batch; steps_per_epoch: of a whole epoch; validated: of one
    row of validation; saved: of a checkpoint; rows: of the splits train, validation and test; share: of the cores that
    its threads could use, what the process got.
    """

    steps: tuple[float, ...]
    steps_per_epoch: int
    validated: float
    saved: float
    rows: Mapping[str, int]
    share: float

    @property
    def timed(self) -> float:
        """Seconds of all steps that were timed."""
        return sum(self.steps)

    def epoch(self, share: float) -> float:
        """Return the seconds of an epoch with validation and checkpoint, of a process with ``share`` of its cores."""
        work = fmean(self.steps) * self.steps_per_epoch + self.validated * self.rows["validation"]
        return work * alone(self.share) / share + self.saved

    def evaluation(self, share: float) -> float:
        """Return the seconds in which a trained network is evaluated on validation and test."""
        return self.validated * (self.rows["validation"] + self.rows["test"]) * alone(self.share) / share


@dataclass(frozen=True)
class Estimate:
    """Seconds on the clock.

    training: by variant, several runs at once; evaluation: of all runs, one after another; share: of the CPU time that
    a run could have, beside the other work on this machine.
    """

    training: Mapping[str, float]
    evaluation: float
    share: float


def estimate(jobs: Iterable[Job], workers: int) -> Estimate:
    """Return how long ``jobs`` (of ``Plan.jobs``) take, ``workers`` runs at once.

    That is all their epochs: a run may end earlier. Trials count to their variant, and a run of the variant itself is
    taken for its slowest trial, which tuning may choose. Jobs that differ in their seed alone are timed once.
    """
    jobs = list(jobs)
    measured: dict[str, Measurement] = {}
    for job in jobs:
        if job.variant not in measured:
            measured[job.variant] = measure(job)
    workers = at_once(jobs, workers)
    timed = sum(measurement.timed for measurement in measured.values())
    got = sum(measurement.share * measurement.timed for measurement in measured.values()) / timed if timed else 1.0
    share = share_of_each(got, workers, len(os.sched_getaffinity(0)))
    training: dict[str, float] = {}
    evaluation = 0.0
    for job in jobs:
        name, slash, _ = job.variant.partition("/")
        own = [measurement for variant, measurement in measured.items() if variant.partition("/")[0] == name]
        about = measured[job.variant] if slash else max(own, key=lambda measurement: measurement.epoch(share))
        training[name] = training.get(name, 0.0) + about.epoch(share) * job.training["max_epochs"] / workers
        evaluation += about.evaluation(share_of_each(got, 1, len(os.sched_getaffinity(0))))
    return Estimate(training, evaluation, share)


def at_once(jobs: Iterable[Job], workers: int) -> int:
    """Return how many of ``workers`` runs train at once: on GPUs, as many as may share one, times their number."""
    import torch

    if not torch.cuda.is_available():
        return workers
    most = min((job.runs_per_gpu for job in jobs), default=1)
    return min(workers, most * torch.cuda.device_count())


def alone(share: float) -> float:
    """Return by which factor a process that got ``share`` of its cores is faster with all of them.

    A little less than all of them is no other work: a process waits, for a disk for example.
    """
    return share if share < BUSY else 1.0


def share_of_each(share: float, workers: int, cores: int) -> float:
    """Return the share of a core that each of ``workers`` processes gets.

    share: of a core, that one process got while it was measured. Cores are shared evenly: beside ``others`` at work one
    process gets cores / (others + 1) of one.
    """
    others = cores / share - 1 if share < BUSY else 0.0
    return min(1.0, cores / (others + workers))


def load(cores: int) -> float | None:
    """Return the load average of the last minute where it is above the number of cores, else None."""
    average = os.getloadavg()[0]
    return average if average > cores else None


def measure(job: Job) -> Measurement:
    """Time steps, validation and a checkpoint of a job here, with its batches, threads and device; write nothing."""
    import torch

    import models
    from models.objectives import make_objective
    from reread.batches.batches import Batches
    from reread.batches.collation import reads_ragged
    from reread.batches.inference import Predictor
    from reread.runtime.determinism import threads
    from reread.storage.prepared import open_prepared
    from reread.training.average import Average
    from reread.training.checkpoint import Checkpoint
    from reread.training.optimisers import make_optimiser
    from reread.training.state import COLUMNS, State
    from reread.training.step import Step
    from reread.training.validation import validate

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared = open_prepared(job.prepared, verify=False)
    rows = {split: prepared.rows(split) for split in ("train", "validation")}
    _, settings = job_settings(job)
    objective = make_objective(settings.objective, prepared.description, prepared.labels[rows["train"]])
    with torch.random.fork_rng(), threads(settings.threads), tempfile.TemporaryDirectory() as folder:
        network = models.build(job.model, job.network, prepared.description).to(device).train()
        optimiser = make_optimiser(network, settings)
        step, average = Step(network, objective, optimiser, settings, device), Average(network, settings.ema_decay)
        ragged = reads_ragged(network, device)
        batches = Batches(
            prepared, rows["train"], device, settings.batch_size, job.seed, ragged=ragged,
            augmentation=settings.augmentation,
        )  # fmt: skip
        epoch = batches.epoch(1)

        def train() -> None:
            for batch in islice(epoch, 1):
                float(step(batch.inputs, batch.target, settings.learning_rate).loss)  # waits for a GPU
                average.update(0)

        train()  # the first step allocates what the others use
        steps: list[float] = []
        process = time.process_time()
        for _ in range(1, len(batches)):
            steps.append(seconds(train))
            if len(steps) >= STEPS and sum(steps) >= SECONDS:
                break
        if not steps:
            epoch = batches.epoch(2)
            steps.append(seconds(train))
        used = (time.process_time() - process) / settings.threads
        share = 1.0 if device.type == "cuda" else min(1.0, used / sum(steps))  # a GPU's work shows on no core
        sample = np.random.default_rng(0).permutation(rows["validation"])[:VALIDATED]
        half = step.half if settings.amp_validation else None
        predictor = Predictor(prepared, np.sort(sample), device, ragged, None, half, settings.cuda_graphs)
        state = State()

        def check() -> None:
            state.record(dict.fromkeys(COLUMNS, 0.0), validate(average.network, objective, prepared, predictor))

        validated = seconds(check) / len(sample)
        checkpoint = Checkpoint(Path(folder), network, average, optimiser, step.scaler)
        saved = seconds(lambda: checkpoint.save(state))
    counts = {split: stop - start for split, (start, stop) in prepared.description["splits"].items()}
    return Measurement(tuple(steps), len(batches), validated, saved, counts, share)


def seconds(work: Callable[[], Any]) -> float:
    """Do ``work`` and return the seconds that it took, on the clock."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def baseline_seconds(prepared_directory: Path) -> float:
    """Return about how long the baselines of a data set take, by fits on a sample of its rows; test is not read."""
    from reread import kinds
    from reread.evaluation.baselines import evaluate_baseline
    from reread.preprocessing.manifest import open_data_set
    from reread.storage.prepared import open_prepared

    prepared = open_prepared(prepared_directory, verify=False)
    data, inputs, labels = open_data_set(prepared.description["name"]), {}, {}
    for split, count in FITTED.items():
        rows = np.sort(np.random.default_rng(0).permutation(prepared.rows(split))[:count])
        inputs[split], labels[split] = data.read(prepared.arrays["raw_indices"][rows].tolist()), prepared.labels[rows]
    total = 0.0
    for baseline in kinds.baselines_of(prepared.kind, prepared.task):
        about = (baseline.name, inputs, labels, prepared.task, prepared.classes)
        with suppress(InputError):  # of a sample without a word that comes again
            total += seconds(partial(evaluate_baseline, *about))
    return total * len(prepared.rows("train")) / len(inputs["train"])
