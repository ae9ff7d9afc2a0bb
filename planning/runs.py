"""Runs as they lie in runs/: found by their key or its beginning, and what each says of itself."""

import difflib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from planning.environment import read_environment
from storage.errors import InputError
from storage.files import read_json


@dataclass(frozen=True)
class Run:
    """One folder of runs/; what it does not hold (yet) is empty."""

    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def finished(self) -> bool:
        return (self.directory / "result.json").is_file()

    @cached_property
    def job(self) -> dict[str, Any]:
        return read_json(self.directory / "job.json")

    @cached_property
    def result(self) -> dict[str, Any]:
        return self._read("result.json")

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._read("environment.json")

    @cached_property
    def timing(self) -> dict[str, Any]:
        return self._read("timing.json")

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """The metrics of each evaluation, the newest last."""
        files = sorted(self.directory.glob("evaluation/*/metrics.json"), key=lambda path: path.stat().st_mtime_ns)
        return {path.parent.name: read_json(path) for path in files}

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        return read_json(path) if path.is_file() else {}


def all_runs(root: Path | None = None) -> list[Run]:
    """Return the runs in ``root`` (default: where the environment says), finished or not, by key."""
    root = root or read_environment().runs
    return [Run(path.parent) for path in sorted(root.glob("*/job.json")) if not path.parent.name.startswith(".")]


def find_run(name: str, root: Path | None = None) -> Run:
    """The run whose key is or begins with ``name``, or whose folder it is. InputError names the nearest."""
    if (Path(name) / "job.json").is_file():
        return Run(Path(name))
    root = root or read_environment().runs
    runs = {run.key: run for run in all_runs(root)}
    key = Path(name).name
    matching = [one for one in runs if one.startswith(key)]
    if len(matching) == 1 or key in matching:
        return runs[key if key in matching else matching[0]]
    if matching:
        raise InputError(f"'{name}' is the beginning of {len(matching)} runs ({', '.join(matching[:4])}): give more")
    if not runs:
        raise InputError(f"no run '{name}': {root}/ holds none yet, `make run` trains some")
    beginnings = {one[: len(key)]: one for one in runs}
    close = difflib.get_close_matches(key, beginnings, n=1, cutoff=0.7)
    hint = f"did you mean '{beginnings[close[0]]}'?" if close else "`reread compare` lists them"
    raise InputError(f"no run '{name}' in {root}/: {hint}")
