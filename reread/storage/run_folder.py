"""One folder of runs/: its files and their content.

job.json            the resolved job; environment.json and timing.json: where it ran and for how long
history.csv         one row per epoch; log.txt: the process's log
checkpoints/EPOCH/  training.safetensors, the state of training after an epoch, from which it resumes; best.safetensors,
                    the weights of the best epoch so far; digests.json, the sha256 of both
best.safetensors    the weights of the best epoch, written at the end
digests.json        the sha256 of history.csv and result.json, which has that of the weights
result.json         written last: a run that has it is finished
evaluation/KEY/     metrics.json, latency.json and SPLIT.npy, the probabilities float32 [rows, classes]; digests.json

A run that is known from results/ alone has no weights and no checkpoints. It has published.json, its record in
runs.json there, and evaluation/published/ with SPLIT.npz, what is published of its predictions, in place of SPLIT.npy.
"""

import csv
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from reread.storage.digests import DIGESTS, refuse_damaged, require_intact, verify_digest
from reread.storage.errors import InputError
from reread.storage.files import (
    canonical_json,
    json_text,
    mend,
    read_json,
    read_object,
    sha256_bytes,
    sha256_file,
    write_json,
    write_text,
)

JOB = "job.json"
RESULT = "result.json"
ENVIRONMENT = "environment.json"
TIMING = "timing.json"
HISTORY = "history.csv"
LOG = "log.txt"
CHECKPOINTS = "checkpoints"
CHECKPOINT = "training.safetensors"
WEIGHTS = "best.safetensors"
# Entries of a job file; reread/training/settings.py checks those that training needs.
JOB_ENTRIES = {
    "run_key": str,
    "variant": str,
    "model": str,
    "data": str,
    "experiment": str,
    "prepared": str,
    "key_parts": dict,
    "seed": int,
    "network": dict,
    "training": dict,
}
EVALUATION = "evaluation"
METRICS = "metrics.json"
LATENCY = "latency.json"
# In results/EXPERIMENT: the small files of each run as they were, by its key: result, timing, history (text), metrics
# of the evaluated splits, and latency. Canonical JSON, compressed by xz.
FILES = "files.json.xz"
PUBLISHED = "published"


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
        """job.json as it is; one that was written by hand lacks entries of a ``Job``. InputError where it is no job."""
        path = self.directory / JOB
        job = read_object(path, "model", "network")
        for name, kind in JOB_ENTRIES.items():
            if not isinstance(job.get(name, kind()), kind):
                raise InputError(f"{path}: '{name}' is {job[name]!r}: {mend(path)}")
        return job

    @cached_property
    def result(self) -> dict[str, Any]:
        """result.json, {} where the run has not finished; InputError where it is damaged."""
        if self.finished:
            # A served model has a copy of it, without the history and without digests.
            require_intact(self.directory / RESULT, self._hint, required=(self.directory / HISTORY).is_file())
        return self._read(RESULT)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """environment.json, with the commit that the job names where it was made for another machine.

        That machine has no checkout of its own, or one of another commit; its source was compared with the job's.
        """
        commit = self._read(JOB).get("checkout", ())
        return {**self._read(ENVIRONMENT), **dict(zip(("git_commit", "git_dirty"), commit, strict=False))}

    @cached_property
    def timing(self) -> dict[str, Any]:
        return self._read(TIMING)

    def require_result(self) -> dict[str, Any]:
        """Return result.json; InputError where the run has not finished."""
        if not self.finished:
            raise InputError(f"{self.directory} has no {RESULT}: the run has not finished, train it again to resume it")
        return self.result

    def damage(self) -> str | None:
        """Return in words which file of a finished run is damaged: result, history or weights; None if they are whole.

        Weights that are on another machine are not damaged.
        """
        try:
            for name in (RESULT, HISTORY):
                verify_digest(self.directory / name, required=True)
            result = read_object(self.directory / RESULT)
            if self.weights.is_file() and "weights_sha256" in result:
                refuse_damaged(self.weights, result["weights_sha256"])
        except InputError as error:
            return str(error)
        return None

    def is_whole(self) -> bool:
        """Return whether the run is finished, and none of its files damaged."""
        return self.finished and self.damage() is None

    def refuse_damage(self) -> None:
        """Raise InputError where a file of a finished run is damaged."""
        if self.finished and (damage := self.damage()):
            raise InputError(f"{damage}; {self._hint}")

    @property
    def _hint(self) -> str:
        if (self.directory / f"{PUBLISHED}.json").is_file():
            return f"remove {self.directory} and run again: results/ restore it"
        return f"train it again (`python -m reread.training {self.directory / JOB}`): its last checkpoint restores it"

    def history(self) -> list[dict[str, float]]:
        """Return the rows of history.csv, one per epoch; InputError where it is missing or not readable."""
        path = require_intact(self.directory / HISTORY, self._hint, required=self.finished)
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

    @cached_property
    def published(self) -> dict[str, Any]:
        """published.json, the run's record in results/; {} of a run that was trained."""
        return self._read(f"{PUBLISHED}.json")

    def published_evaluation(self, splits: Sequence[str]) -> Path | None:
        """Return the folder of the evaluation that results/ keeps; None where there is none of all these splits."""
        folder = self.evaluation(PUBLISHED)
        if not self.published or not (folder / METRICS).is_file():
            return None
        measured = read_object(require_intact(folder / METRICS, evaluate_again(folder), required=True))
        return folder if set(splits) <= set(measured) else None

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Return the metrics of each evaluation by its key, the newest last."""
        files = sorted(
            self.directory.glob(f"{EVALUATION}/*/{METRICS}"), key=lambda path: (path.stat().st_mtime_ns, path)
        )
        return {
            path.parent.name: read_json(require_intact(path, evaluate_again(path.parent), required=True))
            for path in files
        }

    def _read(self, name: str) -> dict[str, Any]:
        path = self.directory / name
        return read_object(path) if path.is_file() else {}


def write_result(run_directory: Path, result: dict[str, Any]) -> None:
    """Write digests.json of a run and then result.json, by which the run is finished."""
    text = json_text(result)
    digests = {HISTORY: sha256_file(run_directory / HISTORY), RESULT: sha256_bytes(text.encode())}
    write_json(run_directory / DIGESTS, {"files": digests})
    write_text(run_directory / RESULT, text)


def write_files(path: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Write the small files of runs by key; see FILES."""
    path.write_bytes(lzma.compress(canonical_json(files).encode(), preset=9))


def read_files(path: Path) -> dict[str, dict[str, Any]]:
    """Return what ``write_files`` wrote; InputError where it is missing or damaged."""
    try:
        return json.loads(lzma.decompress(path.read_bytes()))
    except (OSError, lzma.LZMAError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error}): restore it from git") from None


def evaluate_again(evaluation_directory: Path) -> str:
    """Return what mends a damaged evaluation; one that is known from results/ is restored with its run."""
    if evaluation_directory.name == PUBLISHED:
        return f"remove {evaluation_directory.parent.parent} and run again"
    return f"remove {evaluation_directory} and evaluate the run again"
