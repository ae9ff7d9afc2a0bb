"""A kind of data, a source of it and a network that reads it are one new file each, and no other file changes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.files import sha256_file
from tests.rooms import copy_rooms

ROOT = Path(__file__).parents[3]
ROOMS = ("storage", "goals", "kinds", "batches", "preprocessing", "training", "runtime", "evaluation")

KIND = '''
"""Series: float32 numbers, as many for each row."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar

import numpy as np
from sklearn.linear_model import LogisticRegression

from reread.kinds import Baseline, Kind, RawRows
from reread.kinds.image import Settings


@dataclass(frozen=True)
class SeriesRows:
    about: Any
    values: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    groups: list[str]
    kind: ClassVar[str] = "series"


@dataclass(frozen=True)
class SeriesData:
    name: str
    directory: Any
    entry: Any

    def _array(self, name):
        return np.load(self.directory / f"{name}.npy", allow_pickle=False)

    labels = property(lambda self: self._array("labels"))
    split = property(lambda self: self._array("split"))

    def groups(self):
        names, numbers = np.unique(self._array("groups"), return_inverse=True)
        return numbers.astype(np.int64), names.tolist()

    def read(self, rows):
        return self._array("values")[rows]

    def changes(self, rows):
        return "other rows"


def write(name, directory, rows):
    order = np.argsort(rows.split, kind="stable")
    groups = np.array(rows.groups)
    for file, array in (("values", rows.values), ("labels", rows.labels), ("split", rows.split), ("groups", groups)):
        np.save(directory / f"{file}.npy", array[order])
    digests = [sha256(row.tobytes()).digest() for row in rows.values[order]]
    return RawRows(digests, rows.labels[order], rows.split[order], groups[order])


def prepare(data, settings, working):
    counts = np.bincount(data.split, minlength=3)
    stops = np.cumsum(counts).tolist()
    rows = np.arange(len(data.labels))
    values = data.read(rows)
    mean, deviation = values[: stops[0]].mean(), values[: stops[0]].std()
    np.save(working / "values.npy", ((values - mean) / deviation).astype(np.float32))
    np.save(working / "labels.npy", data.labels)
    np.save(working / "raw_indices.npy", rows)
    starts = [0, *stops]
    return {"splits": {name: starts[n : n + 2] for n, name in enumerate(("train", "validation", "test"))}}


def features(rows):
    return {split: np.abs(np.fft.rfft(values)) for split, values in rows.items()}


def fit(features, labels, classes, task, strength):
    from types import SimpleNamespace

    model = LogisticRegression(C=strength).fit(features["train"], labels["train"])
    return SimpleNamespace(
        predict=lambda rows: model.predict_proba(rows).astype(np.float32), parameters=model.coef_.size, temperature=None
    )


KIND = Kind(
    row="series",
    reads="series of numbers",
    write_raw=write,
    open_raw=SeriesData,
    settings=Settings,
    prepare=prepare,
    collator="reread.batches.array:Collator",
    row_array="values",
    baselines=(Baseline("spectrum", "logistic regression over the spectrum", (0.1, 1.0), features, fit),),
)
'''

SOURCE = '''
"""Waves: slow or fast, of ten stations to a split."""

import numpy as np

from reread.kinds.series import SeriesRows
from reread.preprocessing.raw import About


def rows(progress):
    generator = np.random.default_rng(0)
    labels = (np.arange(300) % 2).astype(np.int32)
    phase = generator.uniform(0, 7, (300, 1))
    waves = np.sin(phase + np.arange(32) * np.where(labels, 0.9, 0.3)[:, None]) + generator.normal(0, 0.3, (300, 32))
    split = np.repeat(np.arange(3, dtype=np.uint8), (200, 50, 50))
    groups = [f"station {part}-{row % 10}" for row, part in enumerate(split)]
    about = About(("slow", "fast"), "drawn by the test", "none")
    return SeriesRows(about, waves.astype(np.float32), labels, split, groups)
'''

NETWORK = '''
"""A convolution along the series and the maximum of each channel."""

from dataclasses import dataclass

from torch import nn

KIND = "series"


@dataclass(frozen=True)
class Settings:
    channels: int = 8

    @classmethod
    def read(cls, mapping, where):
        return cls(**mapping)


DEBUG = Settings()


class Line(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.convolution = nn.Conv1d(1, channels, 9)
        self.classify = nn.Linear(channels, classes)

    def forward(self, values):
        return self.classify(self.convolution(values.unsqueeze(1)).amax(dim=2))


def build(settings, description):
    return Line(settings.channels, len(description["classes"]))
'''

WORK = """
import json
from pathlib import Path

import numpy as np

from reread import kinds
import models
from reread.evaluation.baselines import evaluate_baseline
from reread.evaluation.run import evaluate_run
from reread.preprocessing.ingest import data_card, ingest
from reread.preprocessing.manifest import load_raw_rows, open_data_set
from reread.preprocessing.prepare import prepare
from reread.preprocessing.sources import embedded
from reread.storage.ledger import open_run_test_split
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import RunFolder
from reread.training.__main__ import attempt
from reread.training.processes import SINGLE_PROCESS

assert kinds.available() == ["image", "series", "symbols", "text"]
assert "waves" in embedded() and "line" in models.available()
entry = ingest("waves")
assert (entry.kind, entry.groups, entry.splits) == ("series", "stored", {"train": 200, "validation": 50, "test": 50})
folder = prepare("waves", None)
prepared = open_prepared(folder)
assert prepared.groups.dtype == np.int64 and len(set(prepared.groups.tolist())) == 30
assert "| slow | 100 | 25 | 25 |" in data_card(open_data_set("waves"))
job = {
    "run_key": "key", "variant": "line", "model": "line", "data": "waves", "seed": 1, "network": {"channels": 8},
    "training": {"max_epochs": 15, "batch_size": 20, "objective": {"name": "classification", "label_smoothing": 0.0}},
    "prepared": str(folder), "run_directory": "runs/key",
}
Path("job.json").write_text(json.dumps(job))
assert attempt(Path("job.json"), None, False, SINGLE_PROCESS) == 0
with open_run_test_split(RunFolder(Path("runs/key")), prepared.description):
    evaluation = evaluate_run(Path("runs/key"), folder)
    rows = load_raw_rows(prepared, ["train", "validation", "test"])
    labels = {split: prepared.labels[prepared.rows(split)] for split in rows}
baseline = evaluate_baseline("spectrum", rows, labels, prepared.task, prepared.classes)
print(json.dumps({
    "network": json.loads((evaluation / "metrics.json").read_text())["test"]["accuracy"],
    "latency": json.loads((evaluation / "latency.json").read_text())["unit"],
    "baseline": baseline.metrics["test"]["accuracy"],
}))
"""


@pytest.fixture
def project(tmp_path) -> Path:
    return copy_rooms(tmp_path / "project", "cuda_ext", "models", *(f"reread/{room}" for room in ROOMS))


def digests(project: Path) -> dict[str, str]:
    return {str(path.relative_to(project)): sha256_file(path) for path in sorted(project.rglob("*.py"))}


def test_a_new_kind_is_one_file(project, tmp_path):
    before = digests(project)
    new = {"reread/kinds/series.py": KIND, "reread/preprocessing/sources/waves.py": SOURCE, "models/line.py": NETWORK}
    for name, source in new.items():
        (project / name).write_text(source)
    work = tmp_path / "work"
    work.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(project), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", WORK], cwd=work, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout.splitlines()[-1])
    assert measured["network"] > 0.9 and measured["baseline"] > 0.9
    assert measured["latency"] == "seconds per series"
    after = digests(project)
    assert {name: after[name] for name in before} == before and set(after) - set(before) == set(new)
