"""Runs that are known from results/: they count as finished, without their weights and without being trained again.

A record in results/EXPERIMENT/runs.json names the parts of the run's key, its machine among them. A plan computes the
key of each of its runs for that machine too; where the two are equal, the run is restored into runs/ from what is
published: its result, history, metrics and predictions (reread.storage.run_folder, reread.evaluation.items). From then
on it is like a run that another machine trained and that came back without its weights.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from reread.evaluation.items import open_items
from reread.planning.runs import RESULTS
from reread.storage.digests import digested_directory
from reread.storage.errors import InputError
from reread.storage.files import FROM_GIT, read_json, write_json, write_text
from reread.storage.job import Job
from reread.storage.locks import file_lock, run_lock
from reread.storage.prepared import SPLITS
from reread.storage.run_folder import (
    ENVIRONMENT,
    FILES,
    HISTORY,
    LATENCY,
    METRICS,
    PUBLISHED,
    TIMING,
    read_files,
    write_result,
)
from reread.verdicts.verify import RUNS


def published_runs(experiment: str) -> dict[str, dict[str, Any]]:
    """Return by key the published records of an experiment from which runs can be restored.

    Results that were published without the small files of their runs have none.
    """
    folder = RESULTS / experiment
    if not (folder / FILES).is_file() or not (folder / RUNS).is_file():
        return {}
    try:
        runs = read_json(folder / RUNS, FROM_GIT)
        return {run["run_key"]: run for run in runs if run["key_parts"]["machine"]["world_size"]}
    except (KeyError, TypeError):
        raise InputError(f"{folder / RUNS} is no list of run records: {FROM_GIT}") from None


def restore(job: Job, experiment: str, record: Mapping[str, Any]) -> None:
    """Write what is published of the run of a job into its folder, unless it is finished or another process trains it.

    record: of ``published_runs``. result.json is written last, by which the run is finished.
    """
    run = job.run
    with file_lock(run_lock(run.directory), blocking=False) as lock:
        if lock is None or run.finished:
            return
        folder = RESULTS / experiment
        files = read_files(folder / FILES).get(run.key)
        if files is None:
            raise InputError(f"{folder / FILES} lacks run {run.key} of {RUNS}: restore both from git")
        job.write()
        write_json(run.directory / ENVIRONMENT, record["environment"])
        write_json(run.directory / TIMING, files["timing"])
        write_text(run.directory / HISTORY, files["history"])
        write_json(run.directory / f"{PUBLISHED}.json", record)
        items = open_items(folder)
        with digested_directory(run.evaluation(PUBLISHED), replace=True) as working:
            write_json(working / METRICS, files["metrics"])
            write_json(working / LATENCY, files["latency"])
            if items and (kind := items.kind(run.key)):
                split = [name for name in SPLITS if name in files["metrics"]][-1]
                np.savez_compressed(working / f"{split}.npz", allow_pickle=False, **{kind: items.array(run.key)})
        write_result(run.directory, files["result"])
