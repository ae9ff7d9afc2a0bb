"""A job: all that one run is trained and recorded by. job.json in the run's folder holds it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from reread.storage.errors import InputError
from reread.storage.files import mend, write_json
from reread.storage.run_folder import JOB, RunFolder

# What a job that no plan made, or one without folds, does not have.
OPTIONAL = ("key_parts", "machine", "source", "fold", "folds")


@dataclass(frozen=True, kw_only=True)
class Job:
    """One network, one data set, one seed, and one fold where there are folds; paths are relative to the project.

    key_parts: what ``run_key`` is made of. source: the modules of the code that trains it, with their digests.
    fold, folds: the number of the fold that is tested, and how many there are; None by the data's own split.
    processes: how many train it together, each on a GPU of its own.
    """

    run_key: str
    experiment: str
    variant: str
    model: str
    data: str
    seed: int
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    prepared: Path
    run_directory: Path
    key_parts: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    fold: int | None = None
    folds: int | None = None
    runs_per_gpu: int = 1
    processes: int = 1

    @property
    def name(self) -> str:
        """The name of the run in a line of text: "han seed 0", or "han seed 0 fold 2 of 5"."""
        fold = "" if self.fold is None else f" fold {self.fold} of {self.folds}"
        return f"{self.variant} seed {self.seed}{fold}"

    @property
    def file(self) -> Path:
        return self.run_directory / JOB

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.run_directory)

    def to_json(self) -> dict[str, Any]:
        """Return the content of job.json; those of OPTIONAL that a job does not have are no entries."""
        values = {**vars(self), "prepared": str(self.prepared), "run_directory": str(self.run_directory)}
        return {name: value for name, value in values.items() if name not in OPTIONAL or value not in (None, {})}

    def write(self) -> None:
        """Write job.json."""
        write_json(self.file, self.to_json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Return the job that ``to_json`` made ``value`` of; entries that others added to it are left out."""
        given = {entry.name: value[entry.name] for entry in dataclasses.fields(cls) if entry.name in value}
        return cls(**{**given, "prepared": Path(value["prepared"]), "run_directory": Path(value["run_directory"])})

    @classmethod
    def read(cls, run: RunFolder) -> Self:
        """Return the job of a run; InputError where job.json was written by hand and lacks an entry."""
        for entry in dataclasses.fields(cls):
            if entry.default is entry.default_factory is dataclasses.MISSING and entry.name not in run.job:
                path = run.directory / JOB
                raise InputError(f"{path} has no '{entry.name}': {mend(path)}")
        return cls.from_json(run.job)
