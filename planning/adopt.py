"""Adoption: a finished run of older code gets its key of today, where both codes are shown to compute the same.

``adopt`` copies the run. What shows it is either the golden runs or the run's own first epochs (commands/adopt.py).
equivalent_sources.json, committed beside this file, lists for the modules that compute a run the digests of all sources
that gave the same golden runs. ``python -m tests.golden.equivalent`` runs the golden cases and adds today's source.
"""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import models
from storage.digests import DIGESTS
from storage.errors import InputError
from storage.files import below, published_directory, read_json, write_json
from storage.locks import file_lock, run_lock
from storage.run_folder import JOB, RESULT, RunFolder, write_result

FILE = Path(__file__).with_name("equivalent_sources.json")
# What the old runs of one variant must agree in, whatever their names were.
SETTINGS = ("model", "network", "training", "machine", "prepared")


def old_run(job: Mapping[str, Any], runs: Iterable[RunFolder]) -> RunFolder | None:
    """Return the run of the same experiment, variant, data set and seed; InputError where there are several."""
    names = ("experiment", "variant", "model", "data", "seed")
    found = [run for run in runs if all(run.job.get(name) == job[name] for name in names)]
    if len(found) > 1:
        keys = ", ".join(run.key for run in found[:3])
        raise InputError(f"{len(found)} runs are of {job['variant']} seed {job['seed']} ({keys}): leave one of them")
    return found[0] if found else None


def require_agreement(variant: str, runs: list[RunFolder]) -> None:
    """Raise InputError where old runs of a variant differ in more than their seed."""
    first = runs[0]
    for run in runs[1:]:
        for name in SETTINGS:
            if run.job.get(name) != first.job.get(name):
                raise InputError(
                    f"{variant}: runs {first.key} and {run.key} differ in {name}: adopt one experiment's runs"
                )


def golden_runs_are_equal(job: Mapping[str, Any], old: Mapping[str, Any], equivalent: Path = FILE) -> bool:
    """Return whether two jobs differ in their source alone, and both sources gave the same golden runs.

    Never on a GPU: golden runs are of a CPU.
    """
    parts, before = job["key_parts"], old.get("key_parts", {})
    if job["machine"].get("cuda") or {**parts, "source": ""} != {**before, "source": ""}:
        return False
    known = read_json(equivalent) if equivalent.is_file() else {}
    equal = known.get(" ".join(job["source"]["modules"]), [])
    return parts["source"] == before["source"] or {parts["source"], before["source"]} <= set(equal)


def adopt(job: Mapping[str, Any], old: RunFolder) -> None:
    """Copy an old run to the folder of ``job``, under its key; its evaluations are made again.

    InputError for a link that leads out of its folder, whose target would be copied.
    """
    destination = Path(job["run_directory"])
    for path in old.directory.rglob("*"):
        below(old.directory, path.relative_to(old.directory), "remove the link")
    with file_lock(run_lock(destination)), published_directory(destination) as folder:
        ignored = shutil.ignore_patterns("evaluation", ".*", JOB, RESULT, DIGESTS)
        shutil.copytree(old.directory, folder, ignore=ignored, dirs_exist_ok=True)
        write_json(folder / JOB, {**job, "adopted_from": old.key})
        result = {**old.require_result(), "run_key": job["run_key"]}
        result["network_source"] = models.network_source(job["model"], job["network"])
        write_result(folder, result)


def record_source(modules: Iterable[str], digest: str, unchanged: bool, equivalent: Path = FILE) -> None:
    """Add a source to those that gave the same golden runs; where they are not ``unchanged``, begin a new list."""
    known = read_json(equivalent) if equivalent.is_file() else {}
    before = known.get(" ".join(modules), []) if unchanged else []
    write_json(equivalent, {**known, " ".join(modules): list(dict.fromkeys([*before, digest]))})
