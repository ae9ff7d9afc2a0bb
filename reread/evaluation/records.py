"""Finished and evaluated runs as the report reads them: result files alone, and only the splits that may be read."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reread.evaluation.baselines import Baseline
from reread.evaluation.items import ITEMS, DataSet, decides, kind_for, write_items
from reread.evaluation.repeated_baseline import seeds_of
from reread.goals import PREDICTIONS, goal
from reread.storage.digests import read_digests, require_intact
from reread.storage.errors import InputError
from reread.storage.files import read_json
from reread.storage.prepared import DESCRIPTION, SPLITS, Prepared, open_prepared
from reread.storage.run_folder import FILES, HISTORY, LATENCY, METRICS, RunFolder, evaluate_again, write_files


@dataclass(frozen=True)
class RunRecord:
    """One evaluated run of an experiment; ``evaluation_directory`` is what evaluate_run returned.

    The variant is the experiment's name for the run: another experiment may have the same run under another name.
    """

    variant: str
    data: str
    seed: int
    run_directory: Path
    prepared_directory: Path
    evaluation_directory: Path

    @cached_property
    def run(self) -> RunFolder:
        return RunFolder(Path(self.run_directory))

    @property
    def key(self) -> str:
        """The run's key."""
        return self.run.key

    @property
    def result(self) -> dict[str, Any]:
        """result.json: epochs, best_epoch, stopped, parameters, ..."""
        return self.run.require_result()

    @property
    def job(self) -> dict[str, Any]:
        return self.run.job

    @property
    def description(self) -> dict[str, Any]:
        """prepared.json of the data that the run was trained on."""
        return read_json(Path(self.prepared_directory) / DESCRIPTION)

    @property
    def latency(self) -> dict[str, Any]:
        return read_json(self._file(LATENCY))

    @property
    def training_seconds(self) -> float | None:
        """Seconds of training, or None where no timing was kept.

        A resumed run has the timing of its last part: the epochs before that count at its pace.
        """
        timing = self.run.timing
        seconds, samples = timing.get("seconds"), timing.get("samples")
        if seconds is None or not samples:
            return seconds
        rows = len(self.prepared.rows("train"))
        return float(seconds * max(1, self.result["epochs"] * rows / samples))

    @property
    def peak_memory_bytes(self) -> int | None:
        """The most memory of the GPU that training held at a time, or None where it ran on a CPU."""
        return self.run.timing.get("peak_memory_bytes")

    def history(self) -> pd.DataFrame:
        """Return history.csv, one row per epoch; InputError where it is missing or not readable."""
        self.run.history()
        return pd.read_csv(self.run.directory / HISTORY)

    def metrics(self, splits: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the metrics of each of ``splits``; the others are not read."""
        metrics = read_json(self._file(METRICS))
        for split in splits:
            if split not in metrics:
                raise InputError(
                    f"{self.evaluation_directory} has no metrics of the {split} split: evaluate the run again with it"
                )
        return {split: metrics[split] for split in splits}

    def probabilities(self, split: str) -> np.ndarray:
        """Return float32 [rows, K]; of a run known from results/, what stands for them
        (Goal.decode of reread.goals)."""
        kind = self.kind(split)
        if kind is None or f"{split}.npy" in self._written:
            return np.load(self._file(f"{split}.npy"), allow_pickle=False)
        with np.load(self._file(f"{split}.npz"), allow_pickle=False) as arrays:
            asked, outputs = goal(self.description["task"]), len(self.description["classes"])
            return asked.decode(kind, arrays[kind], self.labels(split), outputs)

    def kind(self, split: str) -> str | None:
        """Return the kind of reread.evaluation.items that is known of the predictions; None where nothing is."""
        if f"{split}.npy" in self._written:
            self._file(f"{split}.npy")
            return PREDICTIONS
        if f"{split}.npz" not in self._written:
            return None
        with np.load(self._file(f"{split}.npz"), allow_pickle=False) as arrays:
            return arrays.files[0]

    def measures(self, split: str, metric: str) -> bool:
        """Return whether ``probabilities`` decide a metric: of a run known from results/ some do not."""
        return decides(self.kind(split), metric, self.description["task"])

    def has_probabilities(self, split: str) -> bool:
        """Return whether the run's own probabilities are known."""
        return self.kind(split) == PREDICTIONS

    def files(self, splits: Sequence[str]) -> dict[str, Any]:
        """Return what results/ keeps of the run's small files (reread.storage.run_folder.FILES)."""
        metrics = read_json(self._file(METRICS))
        return {
            "result": self.result,
            "timing": self.run.timing,
            "history": (self.run.directory / HISTORY).read_text(encoding="utf-8"),
            "metrics": {name: value for name, value in metrics.items() if name in splits or name not in SPLITS},
            "latency": self.latency,
        }

    @cached_property
    def _written(self) -> Set[str]:
        """The files that the evaluation was written with."""
        return read_digests(self._file(METRICS).parent).keys()

    def _file(self, name: str) -> Path:
        """Return the path of a file of the evaluation; InputError where it is damaged."""
        directory = Path(self.evaluation_directory)
        return require_intact(directory / name, evaluate_again(directory), required=True)

    @property
    def prepared(self) -> Prepared:
        """Return the prepared arrays, whose digests are not checked again."""
        return open_prepared(self.prepared_directory, verify=False)

    def groups(self, split: str) -> np.ndarray | None:
        """Return the number of each row's group, int64 [rows], or None where no groups are known."""
        prepared = self.prepared
        return None if prepared.groups is None else np.array(prepared.groups[prepared.rows(split)])

    def labels(self, split: str) -> np.ndarray:
        """Return int32 [rows] or uint8 [rows, K]."""
        prepared = self.prepared
        return np.array(prepared.labels[prepared.rows(split)])


def write_evidence(
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    splits: Sequence[str],
    comparisons: Sequence[Mapping[str, Any]],
    folder: Path,
) -> None:
    """Write what lets others continue the experiment and recompute it: items.npz of the last split, files.json.xz."""
    split = splits[-1]
    data_sets: dict[str, DataSet] = {}
    arrays: dict[str, np.ndarray] = {}
    for data in dict.fromkeys(record.data for record in records):
        of_data = [record for record in records if record.data == data]
        names = {record.variant for record in of_data}
        judged = {
            comparison["metric"]
            for comparison in comparisons
            if names & {comparison["treatment"], comparison.get("control")}
        }
        first = of_data[0]
        asked = goal(first.description["task"])
        kind = kind_for(judged, asked.task)
        labels = first.labels(split)
        data_sets[data] = DataSet(asked.task, first.description["classes"], labels, first.groups(split))
        if kind is None:
            continue
        for record in of_data:
            # Of a run known from results/ there may be less than is asked for now.
            own = kind if record.has_probabilities(split) else record.kind(split)
            if own is not None:
                arrays[f"{own}/{record.key}"] = asked.encode(own, record.probabilities(split), labels)
        for name, baseline in baselines.get(data, {}).items():
            for seed, fit in seeds_of(baseline).items():
                of_seed = "" if seed is None else f"/{seed}"
                arrays[f"{kind}/{data}/{name}{of_seed}"] = asked.encode(kind, fit.probabilities[split], labels)
    write_items(folder / ITEMS, data_sets, arrays)
    write_files(folder / FILES, {record.key: record.files(splits) for record in records})


def best_first(records: Sequence[RunRecord], best_seeds: Mapping[str, int]) -> list[RunRecord]:
    """Return the records with each variant's best seed first, the variants in order."""
    order = list(best_seeds)
    return sorted(
        records,
        key=lambda record: (order.index(record.variant), record.seed != best_seeds[record.variant], record.seed),
    )
