"""Adoption: a finished run of older source gets its key of today, where golden runs prove both sources equal.

equivalent_sources.json, committed beside this file, lists for the modules that compute a run the digests of all sources
that gave the same golden runs. ``python -m tests.golden.equivalent`` runs the golden cases and adds today's source.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planning import keys
from planning.runs import all_runs
from storage.files import read_json, write_json
from storage.locks import file_lock, run_lock

FILE = Path(__file__).with_name("equivalent_sources.json")
JOB, RESULT = "job.json", "result.json"


@dataclass(frozen=True)
class Adoption:
    """A run and the key that it has from now on, or why it keeps the one it has."""

    old: str
    new: str | None
    why: str = ""


def adopt(root: Path, dry_run: bool = False, equivalent: Path = FILE) -> list[Adoption]:
    """Rename each finished run in ``root`` whose source computes what today's does to its key of today.

    job.json is rewritten and keeps the old key as ``adopted_from``. Runs of today's source are not listed.
    """
    known = read_json(equivalent) if equivalent.is_file() else {}
    found = []
    for run in all_runs(root):
        job = run.job
        if not run.finished or "key_parts" not in job:
            continue
        # The folder of a process that was killed between rewriting job.json and renaming has its old name.
        new, why = (job, "") if run.key != job["run_key"] else _job_of_today(job, known)
        if new is None:
            if why:
                found.append(Adoption(run.key, None, why))
        elif (root / new["run_key"]).exists():
            found.append(Adoption(run.key, None, f"{new['run_key']} is there already"))
        else:
            found.append(Adoption(run.key, new["run_key"]))
            if not dry_run:
                _rename(run.directory, {**new, "run_directory": str(root / new["run_key"])})
    return found


def _job_of_today(job: dict[str, Any], known: dict[str, list[str]]) -> tuple[dict[str, Any] | None, str]:
    """The job with today's source, or None and why not; no reason where its source is today's."""
    modules = job["source"]["modules"]
    try:
        source = keys.source_of(modules)
    except ValueError as error:
        return None, f"its source has what today's has not ({error})"
    if source["digest"] == job["key_parts"]["source"]:
        return None, ""
    if job["machine"].get("cuda"):
        return None, "golden runs are of a CPU, and prove nothing of a GPU's code: train its first epochs again"
    equal = known.get(" ".join(modules), [])
    if not {source["digest"], job["key_parts"]["source"]} <= set(equal):
        return None, "no golden run proves its source equal to today's"
    parts = {**job["key_parts"], "source": source["digest"]}
    changed = {"key_parts": parts, "source": source, "run_key": keys.run_key(parts), "adopted_from": job["run_key"]}
    return {**job, **changed}, ""


def _rename(directory: Path, job: dict[str, Any]) -> None:
    destination = Path(job["run_directory"])
    with file_lock(run_lock(directory)), file_lock(run_lock(destination)):
        write_json(directory / RESULT, {**read_json(directory / RESULT), "run_key": job["run_key"]})
        write_json(directory / JOB, job)
        os.replace(directory, destination)


def record_source(modules: Iterable[str], digest: str, unchanged: bool, equivalent: Path = FILE) -> None:
    """Add a source to those that gave the same golden runs; where they are not ``unchanged``, begin a new list."""
    known = read_json(equivalent) if equivalent.is_file() else {}
    before = known.get(" ".join(modules), []) if unchanged else []
    write_json(equivalent, {**known, " ".join(modules): list(dict.fromkeys([*before, digest]))})
