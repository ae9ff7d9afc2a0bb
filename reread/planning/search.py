"""A plan that searches: its variants are trials, which are known as far as the results of earlier trials are.

A trial is a variant like any other, with a key, a run in MLflow and a line in the report. Its score is the mean of its
seeds' validation scores. Since trials are proposed again from the results in runs/, a search that was killed goes on
with what is missing, and a finished one is only read.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import partial
from statistics import fmean
from typing import Any

import models
from reread.planning.experiment import merged
from reread.planning.plan import Plan, Variant
from reread.planning.space import axes, propose
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.job import Job
from reread.storage.settings import to_json
from reread.training.settings import Settings as TrainingSettings


def with_known_trials(plan: Plan) -> Plan:
    """Return the plan with the trials that the finished runs determine, the next batch included.

    A plan that searches nothing is returned as it is. InputError for a value that a network or training refuses.
    """
    if plan.search is None:
        return plan
    variants: dict[str, Variant] = {}
    trials: dict[str, list[str]] = {}
    for name, base in plan.bases.items():
        where = f"experiment '{plan.name}', variant '{name}'"
        space = axes(plan.search["spaces"].get(name, {}), f"{where}: space")
        if not space:
            variants[name] = base
            continue
        made = {
            f"{name}/{values}": trial(base, f"{name}/{values}", settings, where)
            for values, settings in propose(plan.search, space, partial(_score, plan, base, where)).items()
        }
        trials[name] = list(made)
        variants |= made
    return dataclasses.replace(plan, variants=variants, trials=trials)


def trial(base: Variant, name: str, settings: Mapping[str, Any], where: str) -> Variant:
    """Return ``base`` with other settings of its network and training; InputError begins with ``where``."""
    try:
        network = read(models.settings_class(base.model), merged(base.network, settings.get("network", {})), "network")
        training = read(TrainingSettings, merged(base.training, settings.get("training", {})), "training")
    except InputError as error:
        raise InputError(f"{where}: its space has a value that cannot be: {error}") from None
    return dataclasses.replace(base, name=name, network=to_json(network), training=to_json(training))


def _score(plan: Plan, base: Variant, where: str, name: str, settings: Mapping[str, Any]) -> float | None:
    """Return the mean validation score of a trial's seeds, or None where one of its runs is not finished."""
    variant = trial(base, name, settings, where)
    jobs = dataclasses.replace(plan, variants={name: variant}).known().jobs()
    runs = [job.run for job in jobs]
    if not runs or not all(run.finished for run in runs):
        return None
    return fmean(run.result["validation"]["score"] for run in runs)


def rounds(plan: Plan, prepared: Mapping[str, str]) -> Iterator[list[Job]]:
    """Yield the jobs that can be trained next, until there are no more: all at once, but for a plan that searches.

    prepared: folders by prepared key. The caller trains what it is given before it asks for more.
    """
    seen: set[str] = set()
    while True:
        jobs = [job for job in with_known_trials(plan).jobs(prepared) if job.run_key not in seen]
        if not jobs:
            return
        yield jobs
        seen |= {job.run_key for job in jobs}
        if plan.search is None:
            return
