"""What differs between two runs: what they were told, read, were made of and ran on, and what came out."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planning.runs import Run
from storage.files import read_json
from storage.prepared import DESCRIPTION

# What names a run or says where it lies is no difference between two.
NAMES = {"run_key", "variant", "seed"}


@dataclass(frozen=True)
class Row:
    """One name and its value in each run; None where a run has none."""

    name: str
    a: Any
    b: Any

    @property
    def equal(self) -> bool:
        return self.a == self.b

    @property
    def difference(self) -> float | None:
        """b - a of two numbers, else None."""
        for value in (self.a, self.b):
            if not isinstance(value, int | float) or isinstance(value, bool):
                return None
        return self.b - self.a


def compare(a: Run, b: Run) -> dict[str, list[Row]]:
    """Rows of each section, equal ones too: parameters, data, source, environment, results, time."""
    sections = {
        name: (read(a), read(b))
        for name, read in (
            ("parameters", _parameters),
            ("data", _data),
            ("source", lambda run: run.job.get("source", {})),
            ("environment", lambda run: {**run.job.get("machine", {}), **run.environment}),
        )
    }
    sections["results"] = _results(a, b)
    sections["time"] = (a.timing, b.timing)
    return {name: _rows(*values) for name, values in sections.items()}


def same_outcome(sections: Mapping[str, list[Row]]) -> bool:
    """Whether weights and results are equal, to the last digit."""
    return all(row.equal for row in sections["results"])


def _parameters(run: Run) -> dict[str, Any]:
    return {name: run.job.get(name) for name in ("variant", "model", "data", "seed", "network", "training")}


def _data(run: Run) -> dict[str, Any]:
    """What the run read: as its prepared.json has it, or the key alone where that is gone."""
    folder = Path(run.job["prepared"])
    known = {"prepared": folder.name, "prepared.json": run.job.get("prepared_sha256")}
    file = folder / DESCRIPTION
    if not file.is_file():
        return {**known, "data version": f"unknown: {folder} is gone"}
    about = read_json(file)
    splits = {name: stop - start for name, (start, stop) in about["splits"].items()}
    return {**known, "data version": about["data_version"], "settings": about["settings"], "rows": splits}


def _results(a: Run, b: Run) -> tuple[dict[str, Any], dict[str, Any]]:
    """Results, and the metrics of the newest evaluation that was made of both in the same way."""
    found = tuple(_flat({key: value for key, value in run.result.items() if key not in NAMES}) for run in (a, b))
    evaluations = a.evaluations(), b.evaluations()
    shared = [key for key in evaluations[0] if key in evaluations[1]]
    if shared:
        for results, metrics in zip(found, evaluations, strict=True):
            # Lists (counts a class, bins of confidence) stay in the report.
            numbers = {
                key: value for key, value in _flat(metrics[shared[-1]]).items() if isinstance(value, int | float)
            }
            results |= {**numbers, **results}
    return found


def _rows(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[Row]:
    a, b = _flat(a), _flat(b)
    return [Row(name, a.get(name), b.get(name)) for name in dict.fromkeys([*a, *b])]


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested names joined by dots."""
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return flat
