"""The runs in runs/: find one by its key or a prefix of it, and record what results/ keeps of it."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reread.planning.environment import read_environment
from reread.storage.digests import require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_object, sha256_file
from reread.storage.prepared import DESCRIPTION
from reread.storage.run_folder import JOB, RESULT, WEIGHTS, RunFolder

RESULTS = Path("results")
NOT_PUBLISHED = ("host",)


def all_runs(root: Path | None = None) -> list[RunFolder]:
    """Return the runs in ``root`` (default: where the environment says), finished or not, by key.

    InputError where the current folder is not a project's and there are no runs.
    """
    if root is None:
        root = read_environment().runs
        if not root.is_dir() and not Path("params.yaml").exists():
            raise InputError(f"{root}/ is missing: run this from the project's folder")
    return [RunFolder(path.parent) for path in sorted(root.glob(f"*/{JOB}")) if not path.parent.name.startswith(".")]


def find_run(name: str) -> RunFolder:
    """Return the run whose key is or begins with ``name``, or whose folder it is. InputError names the nearest."""
    if (Path(name) / JOB).is_file():
        return RunFolder(Path(name))
    root = read_environment().runs
    runs = {run.key: run for run in all_runs(root)}
    key = Path(name).name
    matching = [run for run in runs if run.startswith(key)]
    if len(matching) == 1 or key in matching:
        return runs[key if key in matching else matching[0]]
    if matching:
        raise InputError(f"'{name}' is a prefix of {len(matching)} runs ({', '.join(matching[:4])}): give more")
    if not runs:
        raise InputError(f"no run '{name}': {root}/ holds none yet, `make run` trains some")
    beginnings = {run[: len(key)]: run for run in runs}
    close = difflib.get_close_matches(key, beginnings, n=1, cutoff=0.7)
    hint = f"did you mean '{beginnings[close[0]]}'?" if close else "`reread compare` lists them"
    raise InputError(f"no run '{name}' in {root}/: {hint}")


def run_records(runs: Mapping[tuple[Any, ...], Path], without_weights: bool = False) -> list[dict[str, Any]]:
    """Return the records of runs, given their folders by variant, seed and, of cross-validation, fold; see
    ``run_record``."""
    return [run_record(folder, variant, without_weights) for (variant, *_), folder in sorted(runs.items())]


def run_record(directory: Path, variant: str, without_weights: bool = False) -> dict[str, Any]:
    """Return what results/ keeps of a run: key and its parts, variant, data, seed, commit, environment, and digests.

    ``variant`` is its name in the experiment: the run may have been trained under another one. The digests are of the
    weights and of the prepared arrays; ``dirty`` says whether the source differed from the commit. The record of a run
    that is known from results/ alone is returned as it is there.
    InputError where the run is not finished, its weights do not match their digest, or they are missing and
    ``without_weights`` does not accept that.
    """
    again = f"train run {directory.name} again"
    result = read_object(require_intact(directory / RESULT, again, required=True), "run_key", "seed", "weights_sha256")
    job = read_object(directory / JOB, "run_key", "data")
    weights, run = directory / WEIGHTS, RunFolder(directory)
    if run.published:
        return {**run.published, "variant": variant}
    if not result["run_key"] == job["run_key"] == directory.name:
        raise InputError(f"{directory} is not the run of its name: its result.json names run '{result['run_key']}'")
    if not weights.is_file() and not without_weights:
        raise InputError(f"{weights} is missing, so its digest cannot be verified: copy it here or --without-weights")
    if weights.is_file() and sha256_file(weights) != result["weights_sha256"]:
        raise InputError(f"{weights} does not match the sha256 in result.json: {again}")
    environment = run.environment
    description = Path(job.get("prepared", "")) / DESCRIPTION
    arrays = read_object(description, "arrays")["arrays"] if description.is_file() else {}
    return {
        "run_key": directory.name,
        "variant": variant,
        "data": job["data"],
        "seed": result["seed"],
        "weights_sha256": result["weights_sha256"],
        "weights_verified": weights.is_file(),
        "key_parts": job.get("key_parts", {}),
        "arrays": {name: about["sha256"] for name, about in sorted(arrays.items())},
        "commit": environment.get("git_commit"),
        "dirty": environment.get("git_dirty"),
        "environment": {name: value for name, value in environment.items() if name not in NOT_PUBLISHED},
    }
