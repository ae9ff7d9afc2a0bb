"""The runs that a study reads: networks of one variant, or an evaluated experiment."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

import models
from reread.batches import collation
from reread.batches.subsets import segment_arange, select_rows
from reread.planning.plan import Plan
from reread.storage.arrays import Int64Array
from reread.storage.digests import require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.job import Job
from reread.storage.prepared import Prepared, open_prepared
from reread.storage.run_folder import RESULT, RunFolder

BATCH_SIZE = 64


@dataclass(frozen=True)
class TrainedNetworks:
    """The finished runs of one variant, by seed, and the arrays that they were trained on."""

    runs: Mapping[int, RunFolder]
    prepared: Prepared

    @property
    def data(self) -> str:
        """The name of the data set."""
        return str(self.prepared.description["name"])

    @property
    def description(self) -> dict[str, Any]:
        """prepared.json of its arrays."""
        return self.prepared.description

    def keys(self) -> dict[str, Any]:
        """Return the keys of the runs by seed, for a study's evidence."""
        return {"runs": {str(seed): run.key for seed, run in self.runs.items()}}

    def networks(self, device: torch.device) -> Iterator[tuple[int, "models.Network"]]:
        """Yield each seed and its network with its best weights, in evaluation mode on ``device``.

        InputError where the weights or the network's source are not those of the run.
        """
        for seed, run in self.runs.items():
            yield seed, models.load(run.directory, self.prepared.description).to(device)


def trained_networks(runs: Sequence[RunFolder]) -> TrainedNetworks:
    """Return the networks of ``runs``; InputError unless they are finished runs of one variant, each of its own seed.

    Their data must be texts with one label each.
    """
    by_seed: dict[int, RunFolder] = {}
    for run in runs:
        run.require_result()
        first = runs[0].job
        for part in ("variant", "model", "prepared"):
            if run.job[part] != first[part]:
                raise InputError(
                    f"run {run.key} has {part} {run.job[part]}, {runs[0].key} has {first[part]}: "
                    "give the runs of one variant"
                )
        if run.job["seed"] in by_seed:
            raise InputError(f"run {run.key} has seed {run.job['seed']}, as another run has: give each seed once")
        by_seed[run.job["seed"]] = run
    return TrainedNetworks(dict(sorted(by_seed.items())), open_text(Path(runs[0].job["prepared"])))


def networks_of_variant(plan: Plan) -> TrainedNetworks:
    """Return the networks of a plan of one variant; InputError where one of its runs is not trained."""
    return trained_networks([job.run for job in _finished_jobs(plan)])


def open_text(directory: Path) -> Prepared:
    """Open prepared text; InputError where it is of another kind, or has several labels."""
    prepared = open_prepared(directory)
    if prepared.kind != "text" or prepared.task != "single-label":
        raise InputError(
            f"{directory} is {prepared.task} {prepared.kind} data: give runs on texts that have one label each"
        )
    return prepared


@dataclass(frozen=True)
class EvaluatedExperiment:
    """An experiment whose report belongs to the runs of today's plan: ``metrics`` and ``verdicts`` as it has them."""

    plan: Plan
    metrics: Mapping[str, Any]
    verdicts: Sequence[Mapping[str, Any]]
    jobs: Sequence[Job]

    @property
    def data(self) -> str:
        """The name of the data set. InputError where the experiment has several."""
        names = list(self.plan.data)
        if len(names) > 1:
            raise InputError(f"experiment '{self.plan.name}' has the data sets {', '.join(names)}: give one with one")
        return names[0]

    @property
    def description(self) -> dict[str, Any]:
        """prepared.json of one variant's arrays."""
        return next(iter(self.descriptions.values()))

    @cached_property
    def descriptions(self) -> dict[str, dict[str, Any]]:
        """prepared.json of each variant's arrays."""
        return {job.variant: open_prepared(job.prepared, verify=False).description for job in self.jobs}

    def keys(self) -> dict[str, Any]:
        """Return the experiment, its plan's key, and the keys of its runs by variant and seed."""
        runs: dict[str, dict[str, str]] = {}
        for job in self.jobs:
            runs.setdefault(job.variant, {})[str(job.seed)] = job.run_key
        return {"experiment": self.plan.name, "plan": self.plan.key, "runs": runs}

    def scores(self, variant: str, split: str, metric: str) -> list[float]:
        """Return a metric of each seed, in the order of the plan's seeds."""
        seeds = self.metrics["variants"][variant]["seeds"]
        return [seeds[str(seed)][split][metric] for seed in self.plan.seeds]


def evaluated_experiment(plan: Plan) -> EvaluatedExperiment:
    """Return the evaluation of a plan; InputError where a run is not trained or the report is of other runs."""
    jobs = _finished_jobs(plan)
    folder = plan.report_directory
    again = f"run `{plan.command}`"
    if not (folder / "plan.json").is_file():
        raise InputError(f"experiment '{plan.name}' is not evaluated, {folder} has no plan.json: {again}")
    if read_json(require_intact(folder / "plan.json", again))["key"] != plan.key:
        raise InputError(f"{folder} is the report of other settings of '{plan.name}' than today's: {again}")
    metrics = read_json(require_intact(folder / "metrics.json", again))
    for job in jobs:
        if metrics["variants"][job.variant]["seeds"][str(job.seed)]["run_key"] != job.run_key:
            raise InputError(f"{folder} is of another run of {job.name}: {again}")
    return EvaluatedExperiment(
        plan, metrics, read_json(require_intact(folder / "verdicts.json", again))["verdicts"], jobs
    )


def _finished_jobs(plan: Plan) -> list[Job]:
    for variant in plan.variants.values():
        if variant.prepared_key is None:
            raise InputError(
                f"experiment '{plan.name}' is not trained, its data set '{variant.data}' is not here: "
                f"run `{plan.command}`"
            )
    try:
        jobs = plan.jobs()
    except InputError as error:
        raise InputError(f"{error}: run `{plan.command}`") from None
    for job in jobs:
        if not job.run.finished:
            raise InputError(
                f"{job.name} is not trained, {job.run_directory} has no {RESULT}: "
                f"run `reread train --experiment {plan.name}`"
            )
    return jobs


def draw_rows(prepared: Prepared, split: str, count: int) -> Prepared:
    """Draw ``count`` documents of a split (all where it has fewer) at random, the same each time."""
    rows = prepared.rows(split)
    drawn = np.random.default_rng(0).choice(rows, min(count, len(rows)), replace=False)
    return select_rows(prepared, np.sort(drawn))


def batches(prepared: Prepared, size: int = BATCH_SIZE) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield every row once: rows of similar length, int [n], and their words' places in ``tokens``, int [words]."""
    sizes = collation.sizes(prepared, np.arange(len(prepared.labels)))
    order = np.argsort(sizes, kind="stable")
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        yield rows, np.repeat(prepared.first_words[rows], sizes[rows]) + segment_arange(sizes[rows])
