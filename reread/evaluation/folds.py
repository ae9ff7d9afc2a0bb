"""Cross-validation: the runs of all folds of a repetition as one, and its baselines.

Each row is in the test split of one run of a repetition, and in the validation split of one. Predictions of its runs
are put together, in the order of the rows in the data's files, and measured as those of one run are. So the rows of
both splits are all rows, in the same order for every seed. F1 and the like are of the counts of all folds; AUROC
compares scores of different networks, which lowers it (Forman and Scholz 2010, "Apples-to-apples in cross-validation
studies", SIGKDD Explorations 12).

Shape legend: N rows of the data set, K classes.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean, median_low
from typing import Any

import numpy as np
import pandas as pd

from reread.evaluation.baselines import Baseline
from reread.evaluation.records import RunRecord
from reread.evaluation.repeated_baseline import summary_of
from reread.goals import PREDICTIONS, goal
from reread.storage.files import content_key
from reread.storage.prepared import Prepared

TESTED = ("validation", "test")


@dataclass(frozen=True)
class Repetition(RunRecord):
    """The runs of a variant and seed on all folds, in order, as one record; its folders are those of the first fold."""

    folds: tuple[RunRecord, ...] = ()

    @classmethod
    def of(cls, folds: Sequence[RunRecord]) -> "Repetition":
        """Return the repetition of the records of its folds."""
        of_first = {field.name: getattr(folds[0], field.name) for field in fields(RunRecord)}
        return cls(**of_first, folds=tuple(folds))

    @property
    def key(self) -> str:
        """A key of the keys of its runs."""
        return content_key([fold.key for fold in self.folds])

    @property
    def test_to_train(self) -> float:
        """All rows, which a repetition tests, over those that one of its networks trains on (the mean of its folds)."""
        trained = [stop - start for fold in self.folds for start, stop in [fold.description["splits"]["train"]]]
        return self.description["splits"]["test"][1] / fmean(trained)

    @cached_property
    def result(self) -> dict[str, Any]:
        """The medians of its runs, how most of them ended, and their keys under ``folds``."""
        each = [fold.result for fold in self.folds]
        numbers = {
            name: median_low([result[name] for result in each]) for name in ("epochs", "best_epoch", "parameters")
        }
        stopped = Counter(result["stopped"] for result in each).most_common(1)[0][0]
        return {"run_key": self.key, **numbers, "stopped": stopped, "folds": [fold.key for fold in self.folds]}

    @property
    def description(self) -> dict[str, Any]:
        """prepared.json of the first fold, with all rows in both splits that are evaluated."""
        description = super().description
        rows = max(stop for _, stop in description["splits"].values())
        return {**description, "splits": {**description["splits"], **{split: [0, rows] for split in TESTED}}}

    @property
    def training_seconds(self) -> float | None:
        """Seconds of the training of all its runs."""
        seconds = [fold.training_seconds for fold in self.folds]
        return None if None in seconds else sum(filter(None, seconds))

    @property
    def peak_memory_bytes(self) -> int | None:
        return max((peak for fold in self.folds if (peak := fold.peak_memory_bytes) is not None), default=None)

    def history(self) -> pd.DataFrame:
        """Return the mean of its runs by epoch; of an epoch that some did not reach, that of the others."""
        each = pd.concat([fold.history() for fold in self.folds])
        return each.groupby("epoch", as_index=False).mean(numeric_only=True)

    def metrics(self, splits: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return the metrics of the predictions of all folds together."""
        return {split: self._measured[split] for split in splits}

    @cached_property
    def _measured(self) -> dict[str, dict[str, Any]]:
        splits = [split for split in TESTED if self.has_probabilities(split)]
        predictions, labels = ({split: read(split) for split in splits} for read in (self.probabilities, self.labels))
        return goal(self.description["task"]).measure(predictions, labels, self.description["classes"])

    def probabilities(self, split: str) -> np.ndarray:
        """Return float32 [N, K], the prediction of each row by the run that tests, or validates, on it."""
        return self._together([fold.probabilities(split) for fold in self.folds], split)

    def kind(self, split: str) -> str | None:
        """Return the kind of predictions that is known of all its runs; None where some lack it."""
        return PREDICTIONS if all(fold.kind(split) == PREDICTIONS for fold in self.folds) else None

    def groups(self, split: str) -> np.ndarray | None:
        """Return the number of each row's group, int64 [N], or None where no groups are known."""
        parts = [groups for fold in self.folds if (groups := fold.groups(split)) is not None]
        return self._together(parts, split) if parts else None

    def labels(self, split: str) -> np.ndarray:
        """Return int32 [N] or uint8 [N, K]."""
        return self._together([fold.labels(split) for fold in self.folds], split)

    def files(self, splits: Sequence[str]) -> dict[str, Any]:
        """Return the small files of each of its runs by their keys."""
        return {fold.key: fold.files(splits) for fold in self.folds}

    def _together(self, parts: Sequence[np.ndarray], split: str) -> np.ndarray:
        return together(parts, [fold.prepared for fold in self.folds], split)


def repetitions(records: Sequence[RunRecord], count: int) -> list[Repetition]:
    """Return the repetitions of which all ``count`` folds are there; records: of runs, in the order of their folds."""
    runs: dict[tuple[str, int], list[RunRecord]] = {}
    for record in records:
        runs.setdefault((record.variant, record.seed), []).append(record)
    return [Repetition.of(folds) for folds in runs.values() if len(folds) == count]


def together(parts: Sequence[np.ndarray], folds: Sequence[Prepared], split: str) -> np.ndarray:
    """Return [N, ...], the rows of a split of all folds in the order of the data's files; parts: those of each fold."""
    places = np.concatenate([fold.arrays["raw_indices"][fold.rows(split)] for fold in folds])
    return np.concatenate(parts)[np.argsort(places)]


def put_together(fits: Sequence[Baseline], folds: Sequence[Prepared]) -> Baseline:
    """Return the fits of a baseline on all folds of a seed as one; folds: their arrays, in the same order."""
    splits = list(fits[0].probabilities)
    predictions = {split: together([fit.probabilities[split] for fit in fits], folds, split) for split in splits}
    labels = {
        split: together([np.array(fold.labels[fold.rows(split)]) for fold in folds], folds, split) for split in splits
    }
    metrics = goal(folds[0].task).measure(predictions, labels, folds[0].classes)
    return Baseline(**summary_of(fits), metrics=metrics, probabilities=predictions)
