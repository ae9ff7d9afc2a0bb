"""One folder of runs/: its files and their content.

job.json            the resolved job; environment.json and timing.json: where it ran and for how long
history.csv         one row per epoch; log.txt: the process's log
last.safetensors    the checkpoint of the last epoch, for resuming
best.safetensors    the weights of the best epoch
result.json         written last: a run that has it is finished
evaluation/KEY/     metrics.json, latency.json and SPLIT.npy, the probabilities float32 [rows, classes]
"""

import csv
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from storage.errors import InputError
from storage.files import read_json

JOB = "job.json"
RESULT = "result.json"
ENVIRONMENT = "environment.json"
TIMING = "timing.json"
HISTORY = "history.csv"
LOG = "log.txt"
CHECKPOINT = "last.safetensors"
WEIGHTS = "best.safetensors"
EVALUATION = "evaluation"
METRICS = "metrics.json"
LATENCY = "latency.json"


@dataclass(frozen=True)
class RunFolder:
    """One run on disk. A file is read when its property is first used, and once; a missing optional one is {}."""

    directory: Path

    @property
    def key(self) -> str:
        return self.directory.name

    @property
    def finished(self) -> bool:
        return (self.directory / RESULT).is_file()

    @property
    def weights(self) -> Path:
        """The path of the best weights, whether or not they exist."""
        return self.directory / WEIGHTS

    @cached_property
    def job(self) -> dict[str, Any]:
        """job.json; InputError where it is missing."""
        return read_json(self.directory / JOB)

    @cached_property
    def result(self) -> dict[str, Any]:
        return self._read(RESULT)

    @cached_property
    def environment(self) -> dict[str, Any]:
        return self._read(ENVIRONMENT)

    @cached_property
    def timing(self) -> dict[str, Any]:
        return self._read(TIMING)

    def require_result(self) -> dict[str, Any]:
        """Return result.json; InputError where the run has not finished."""
        if not self.finished:
            raise InputError(f"{self.directory} has no {RESULT}: the run has not finished, train it again to resume it")
        return self.result

    def history(self) -> list[dict[str, float]]:
        """Return the rows of history.csv, one per epoch; InputError where it is missing or not readable."""
        path = self.directory / HISTORY
        try:
            with open(path, encoding="utf-8", newline="") as file:
                return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
        except FileNotFoundError:
            raise InputError(f"{path} is missing: remove {self.directory} and train it again") from None
        except (TypeError, ValueError, csv.Error):
            raise InputError(f"{path} cannot be read: remove {self.directory} and train it again") from None

    def evaluation(self, key: str) -> Path:
        """Return the folder of the evaluation with this key, whether or not it exists."""
        return self.directory / EVALUATION / key

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of each evaluation by its key, the newest last."""
        files = sorted(
            self.directory.glob(f"{EVALUATION}/*/{METRICS}"), key=lambda path: (path.stat().st_mtime_ns, path)
        )
        return {path.parent.name: read_json(path) for path in files}

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        return read_json(path) if path.is_file() else {}
