"""Adoption: a finished run of older code gets its key of today, where both codes are shown to compute the same.

``adopt`` copies the run and its evaluations. What shows it is the source itself, by today's rule of what decides a
number, or the golden runs, or the run's own first epochs (reread/commands/adopt.py).
equivalent_sources.json, committed beside this file, lists for the modules that compute a run the digests of all sources
that gave the same golden runs. ``python -m tests.golden.equivalent`` runs the golden cases and adds today's source.
"""

import functools
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import models
from cuda_ext import library
from reread.evaluation.run import evaluation_key, training_machine
from reread.goals import goal
from reread.planning import keys
from reread.storage.digests import DIGESTS, refuse_damaged_folder
from reread.storage.errors import InputError
from reread.storage.files import below, published_directory, read_json, write_json
from reread.storage.job import Job
from reread.storage.ledger import open_run_test_split
from reread.storage.locks import file_lock, run_lock
from reread.storage.prepared import SPLITS, open_prepared
from reread.storage.run_folder import EVALUATION, JOB, METRICS, RESULT, RunFolder, write_result
from reread.storage.source import NoModule

FILE = Path(__file__).with_name("equivalent_sources.json")
# What the old runs of one variant must agree in, whatever their names were.
SETTINGS = ("model", "network", "training", "machine", "prepared")


def old_run(job: Job, runs: Iterable[RunFolder]) -> RunFolder | None:
    """Return the run of the same experiment, variant, data set and seed; InputError where there are several."""
    names = ("experiment", "variant", "model", "data", "seed")
    matching = [run for run in runs if all(run.job.get(name) == getattr(job, name) for name in names)]
    if len(matching) > 1:
        keys = ", ".join(run.key for run in matching[:3])
        raise InputError(f"{len(matching)} runs are of {job.name} ({keys}): leave one of them")
    return matching[0] if matching else None


def require_agreement(variant: str, runs: list[RunFolder]) -> None:
    """Raise InputError where old runs of a variant differ in more than their seed."""
    first = runs[0]
    for run in runs[1:]:
        for name in SETTINGS:
            if run.job.get(name) != first.job.get(name):
                raise InputError(
                    f"{variant}: runs {first.key} and {run.key} differ in {name}: adopt one experiment's runs"
                )


def golden_runs_are_equal(job: Job, old: Mapping[str, Any], equivalent: Path = FILE) -> bool:
    """Return whether two jobs differ in their source alone, and both sources gave the same golden runs.

    Never on a GPU: golden runs are of a CPU.
    """
    parts, before = job.key_parts, old.get("key_parts", {})
    if job.machine.get("cuda") or {**parts, "source": ""} != {**before, "source": ""}:
        return False
    known = read_json(equivalent) if equivalent.is_file() else {}
    equal = known.get(" ".join(job.source["modules"]), [])
    return parts["source"] == before["source"] or {parts["source"], before["source"]} <= set(equal)


def sources_are_equal(job: Job, old: Mapping[str, Any], checkout: Path) -> bool:
    """Return whether two jobs differ in the forms of their keys alone, by the source in ``checkout`` that trained one.

    InputError where ``checkout`` has another source than the old job names, or other kernels.
    """
    before = source_there(checkout, tuple(old["source"]["modules"]))
    named = re.match(r"extension ([0-9a-f]+)", str(old["machine"]["kernels"]))
    if before[0] != old["source"]["digest"] or (named and named[1] != before[1]):
        raise InputError(f"{checkout} is not the source that trained run {old['run_key']}: check out its commit there")
    parts, then = job.key_parts, old["key_parts"]
    machine = {**then["machine"], "kernels": job.machine["kernels"]}
    form = {"source": "", "kernels": ""}
    if {**parts, **form} != {**then, **form, "machine": machine}:
        return False
    if old["machine"]["kernels"] and library.implementation(old["machine"]["kernels"]) != job.machine["kernels"]:
        return False
    try:
        there = keys.source_of(job.source["modules"], checkout)
    except NoModule:
        return False
    return all(there[name] == job.source[name] for name in ("digest", "kernels"))


@functools.cache
def source_there(checkout: Path, modules: tuple[str, ...]) -> tuple[str, str]:
    """Return the digest of a job's modules by a checkout's own rule, and the key of its library of kernels."""
    code = (
        "from reread.planning import keys; from cuda_ext import build; "
        f"print(keys.source_of({modules!r})['digest'], build.source_key(), keys.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout)},
        capture_output=True,
        text=True,
        check=False,
    )
    digest, kernels, file = done.stdout.split(maxsplit=2) if done.returncode == 0 else ("", "", "")
    # Python falls back to the project that is installed.
    if not Path(file.strip()).is_relative_to(Path(checkout).resolve()):
        raise InputError(
            f"{checkout} is no checkout of this project with its rooms in reread/: it cannot say which source it has"
        )
    return digest, kernels


def adopt(job: Job, old: RunFolder) -> None:
    """Copy an old run to the folder of ``job``, under its key.

    Its evaluations are copied where today's code makes the same metrics of their probabilities; others are made again.
    InputError for a link that leads out of its folder, whose target would be copied.
    """
    destination = job.run_directory
    for path in old.directory.rglob("*"):
        below(old.directory, path.relative_to(old.directory), "remove the link")
    with file_lock(run_lock(destination)), published_directory(destination) as folder:
        ignored = shutil.ignore_patterns("evaluation", ".*", JOB, RESULT, DIGESTS)
        shutil.copytree(old.directory, folder, ignore=ignored, dirs_exist_ok=True)
        write_json(folder / JOB, {**job.to_json(), "adopted_from": old.key})
        result = {**old.require_result(), "run_key": job.run_key}
        result["network_source"] = models.network_source(job.model, job.network)
        write_result(folder, result)
        # An evaluation's key is that of the run, which is not in its place yet.
        adopted = RunFolder(folder)
        for splits, evaluation in evaluations(old, job):
            key = evaluation_key(adopted, splits, training_machine(adopted))
            shutil.copytree(evaluation, adopted.evaluation(key))


def evaluations(old: RunFolder, job: Job) -> Iterator[tuple[list[str], Path]]:
    """Yield the splits and the folder of each evaluation of a run that today's metrics agree with.

    Two of the same splits were made by different machines or sources: neither is taken.
    """
    by_splits: dict[tuple[str, ...], list[Path]] = {}
    for path in sorted(old.directory.glob(f"{EVALUATION}/*/{METRICS}")):
        refuse_damaged_folder(path.parent)
        there = tuple(split for split in SPLITS if path.with_name(f"{split}.npy").is_file())
        by_splits.setdefault(there, []).append(path.parent)
    for splits, folders in by_splits.items():
        prepared = open_prepared(job.prepared)
        probabilities = {split: np.load(folders[0] / f"{split}.npy", allow_pickle=False) for split in splits}
        reads = open_run_test_split(old, prepared.description) if "test" in splits else nullcontext()
        with reads:
            labels = {split: prepared.labels[prepared.rows(split)] for split in splits}
        metrics = goal(prepared.task).measure(probabilities, labels, prepared.classes)
        if len(folders) == 1 and agree(read_json(folders[0] / METRICS), metrics):
            yield list(splits), folders[0]


def agree(before: Any, now: Any) -> bool:
    """Return whether all values ``now`` are those ``before``, numbers to twelve digits: numpy's last one may differ."""
    if isinstance(now, Mapping):
        return all(name in before and agree(before[name], value) for name, value in now.items())
    if isinstance(now, list | tuple):
        return len(before) == len(now) and all(map(agree, before, now))
    return math.isclose(before, now, rel_tol=1e-12) if isinstance(now, float) and before is not None else before == now


def record_source(modules: Iterable[str], digest: str, unchanged: bool, equivalent: Path = FILE) -> None:
    """Add a source to those that gave the same golden runs; where they are not ``unchanged``, begin a new list."""
    known = read_json(equivalent) if equivalent.is_file() else {}
    before = known.get(" ".join(modules), []) if unchanged else []
    write_json(equivalent, {**known, " ".join(modules): list(dict.fromkeys([*before, digest]))})
