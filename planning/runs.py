"""Runs as they lie in runs/: found by their key or its beginning, and what each says of itself."""

import difflib
from pathlib import Path

from planning.environment import read_environment
from storage.errors import InputError
from storage.run_folder import JOB, RunFolder


def all_runs(root: Path | None = None) -> list[RunFolder]:
    """Return the runs in ``root`` (default: where the environment says), finished or not, by key."""
    root = root or read_environment().runs
    return [RunFolder(path.parent) for path in sorted(root.glob(f"*/{JOB}")) if not path.parent.name.startswith(".")]


def find_run(name: str, root: Path | None = None) -> RunFolder:
    """Return the run whose key is or begins with ``name``, or whose folder it is. InputError names the nearest."""
    if (Path(name) / JOB).is_file():
        return RunFolder(Path(name))
    root = root or read_environment().runs
    runs = {run.key: run for run in all_runs(root)}
    key = Path(name).name
    matching = [one for one in runs if one.startswith(key)]
    if len(matching) == 1 or key in matching:
        return runs[key if key in matching else matching[0]]
    if matching:
        raise InputError(f"'{name}' is a prefix of {len(matching)} runs ({', '.join(matching[:4])}): give more")
    if not runs:
        raise InputError(f"no run '{name}': {root}/ holds none yet, `make run` trains some")
    beginnings = {one[: len(key)]: one for one in runs}
    close = difflib.get_close_matches(key, beginnings, n=1, cutoff=0.7)
    hint = f"did you mean '{beginnings[close[0]]}'?" if close else "`reread compare` lists them"
    raise InputError(f"no run '{name}' in {root}/: {hint}")
