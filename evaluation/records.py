"""Finished runs as the report reads them: result files alone, and of the splits only those that may be read."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from evaluation.run import LATENCY, METRICS
from storage.errors import InputError
from storage.files import read_json
from storage.prepared import DESCRIPTION, open_prepared


@dataclass(frozen=True)
class RunRecord:
    """Where one finished and evaluated run lies: evaluation_directory is what evaluate_run returned."""

    variant: str
    data: str
    seed: int
    run_directory: Path
    prepared_directory: Path
    evaluation_directory: Path

    @property
    def result(self) -> dict[str, Any]:
        """result.json: epochs, best_epoch, stopped, parameters, ..."""
        return read_json(Path(self.run_directory) / "result.json")

    @property
    def job(self) -> dict[str, Any]:
        return read_json(Path(self.run_directory) / "job.json")

    @property
    def description(self) -> dict[str, Any]:
        """prepared.json of the data that the run was trained on."""
        return read_json(Path(self.prepared_directory) / DESCRIPTION)

    @property
    def latency(self) -> dict[str, Any]:
        return read_json(Path(self.evaluation_directory) / LATENCY)

    @property
    def training_seconds(self) -> float | None:
        """Seconds of training, or None where no timing was kept (a run that was resumed counts its last part)."""
        path = Path(self.run_directory) / "timing.json"
        return read_json(path).get("seconds") if path.is_file() else None

    def history(self) -> pd.DataFrame:
        """history.csv: one row an epoch."""
        path = Path(self.run_directory) / "history.csv"
        try:
            return pd.read_csv(path)
        except FileNotFoundError:
            raise InputError(f"{path} is missing: remove {self.run_directory} and train it again") from None
        except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError):
            raise InputError(f"{path} cannot be read: remove {self.run_directory} and train it again") from None

    def metrics(self, splits: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The metrics of each of ``splits``; the others are not looked at."""
        found = read_json(Path(self.evaluation_directory) / METRICS)
        for split in splits:
            if split not in found:
                raise InputError(
                    f"{self.evaluation_directory} has no metrics of the {split} split: evaluate the run again with it"
                )
        return {split: found[split] for split in splits}

    def probabilities(self, split: str) -> np.ndarray:
        """float32 [rows, K]."""
        path = Path(self.evaluation_directory) / f"{split}.npy"
        if not path.is_file():
            raise InputError(f"{path} is missing: remove {self.evaluation_directory} and evaluate the run again")
        return np.load(path, allow_pickle=False)

    def groups(self, split: str) -> np.ndarray | None:
        """Return the number of each row's group, int64 [rows], or None where no groups are known."""
        prepared = open_prepared(self.prepared_directory, verify=False)
        return None if prepared.groups is None else np.array(prepared.groups[prepared.rows(split)])

    def labels(self, split: str) -> np.ndarray:
        """int32 [rows] or uint8 [rows, K]."""
        prepared = open_prepared(self.prepared_directory, verify=False)
        return np.array(prepared.labels[prepared.rows(split)])
