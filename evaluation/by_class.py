"""Each class of several labels by itself: AUROC with its interval, ROC curve and calibration.

auroc.csv              data, variant, label, rows, positives, positive_groups, auroc, low, high: the mean over seeds,
                       with the interval over seeds and items of evaluation.bootstrap (whole groups are drawn)
roc.csv                data, variant, label, false_positive_rate, true_positive_rate: the mean over seeds of the true
                       positive rate at each false positive rate (Fawcett 2006, "An introduction to ROC analysis")
class-calibration.csv  data, variant, label, low, high, count, confidence, share: all seeds together

Shape legend: n seeds, m items, K classes, R resamples.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from sklearn.metrics import roc_curve

from evaluation.bootstrap import RESAMPLES, crossed_error, group_numbers, item_counts, item_deviations, won_pairs
from evaluation.metrics import auroc, calibration_bin, rank_pairs
from evaluation.pictures import calibration_by_class, roc_by_class
from evaluation.records import RunRecord
from evaluation.statistics import CONFIDENCE
from evaluation.tables import write_table

# More classes than this, such as the positions of a sequence, have no figures of their own.
MOST_CLASSES = 30
BINS = 10
RATES = np.linspace(0, 1, 101)


@dataclass(frozen=True)
class ClassAuroc:
    """The mean AUROC over seeds, and its interval; None where it is not defined.

    positives: rows that have the class; positive_groups: groups with such a row (rows where no groups are known). With
    fewer than two there is no interval: no other rows were seen that it could speak for.
    """

    mean: float | None
    low: float | None
    high: float | None
    positives: int
    positive_groups: int

    @property
    def interval(self) -> dict[str, float | None]:
        """Low and high as a mapping."""
        return {"low": self.low, "high": self.high}


def class_aurocs(
    probabilities: Sequence[np.ndarray],
    labels: np.ndarray,
    groups: np.ndarray | None = None,
    confidence: float = CONFIDENCE,
    resamples: int = RESAMPLES,
) -> list[ClassAuroc]:
    """Return each class's AUROC over seeds and items.

    probabilities: for each seed float32 [m, K]; labels: uint8 [m, K]; groups: of each item, [m]. Resamples in which a
    class has only one outcome do not count for it.
    """
    truth, items = np.asarray(labels).astype(bool), len(labels)
    numbers = group_numbers(groups, items)
    ranks = [
        [rank_pairs(one[:, number], truth[:, number]) for one in probabilities] for number in range(truth.shape[1])
    ]
    blocks = []
    for counts in item_counts(resamples, items, np.random.default_rng(0), numbers):
        by_item = np.ascontiguousarray(counts.T)
        found = np.array([[won_pairs(one, by_item) for one in of_class] for of_class in ranks])  # [K, n, 2, R]
        with np.errstate(invalid="ignore"):
            blocks.append(found[:, :, 0] / found[:, :, 1])
    drawn = np.concatenate(blocks, axis=2)
    return [
        _class_auroc(one, truth[:, number], [seed[:, number] for seed in probabilities], numbers, confidence)
        for number, one in enumerate(drawn)
    ]


def _class_auroc(
    drawn: np.ndarray, positive: np.ndarray, scores: Sequence[np.ndarray], groups: np.ndarray | None, confidence: float
) -> ClassAuroc:
    """drawn: AUROC of each seed on each resample, float64 [n, R], NaN where it is not defined; scores: [m] per seed."""
    count = int(positive.sum())
    with_class = count if groups is None else len(np.unique(groups[positive]))
    without = len(positive) - count if groups is None else len(np.unique(groups[~positive]))
    values = [value for one in scores if (value := auroc(one, positive)) is not None]
    if len(values) < len(scores):
        return ClassAuroc(None, None, None, count, with_class)
    mean = float(np.mean(values))
    defined = drawn[:, ~np.isnan(drawn).any(axis=0)]
    fewest = min(with_class, without)
    if fewest < 2 or defined.shape[1] < 2:
        return ClassAuroc(mean, None, None, count, with_class)
    item, _ = item_deviations(defined.T)
    # The rarer side decides how well the spread between groups is known.
    error, freedom = crossed_error(np.array(values), item, fewest)
    half = float(stats.t.ppf((1 + confidence) / 2, freedom)) * error if error else 0.0
    return ClassAuroc(mean, max(0.0, mean - half), min(1.0, mean + half), count, with_class)


def write_class_figures(
    records: Sequence[RunRecord], split: str, variants: Set[str], folder: Path
) -> dict[str, dict[str, Any]]:
    """Write the tables of all records that ``has_class_figures`` names, and pictures of ``variants``, per data set.

    Returns for each such data set the pictures' names (``roc``, ``calibration``), its ``variants``, whether ``groups``
    are drawn, and ``auroc``: for each class and variant a ClassAuroc.
    """
    several = [record for record in records if has_class_figures(record.description)]
    if not several:
        return {}
    aurocs, curves, bins = [], [], []
    found: dict[str, dict[str, Any]] = {}
    for data, name in dict.fromkeys((record.data, record.variant) for record in several):
        mine = [record for record in several if (record.data, record.variant) == (data, name)]
        classes, labels = mine[0].description["classes"], mine[0].labels(split)
        probabilities = [record.probabilities(split) for record in mine]
        groups = mine[0].groups(split)
        empty = {"auroc": {label: {} for label in classes}, "groups": groups is not None, "variants": []}
        about = found.setdefault(data, empty)
        about["variants"].append(name)
        for label, one in zip(classes, class_aurocs(probabilities, labels, groups), strict=True):
            about["auroc"][label][name] = one
            numbers = (one.positives, one.positive_groups, one.mean, one.low, one.high)
            aurocs.append((data, name, label, len(labels), *numbers))
        for number, label in enumerate(classes):
            start = {"data": data, "variant": name, "label": label}
            scores, positive = [one[:, number] for one in probabilities], labels[:, number].astype(bool)
            if 0 < positive.sum() < len(positive):
                rates = {"false_positive_rate": RATES, "true_positive_rate": mean_curve(scores, positive)}
                curves.append(pd.DataFrame({**start, **rates}))
            bins.append(pd.DataFrame(calibration(scores, positive)).assign(**start))
    columns = ["data", "variant", "label", "rows", "positives", "positive_groups", "auroc", "low", "high"]
    tables = {
        "auroc": pd.DataFrame(aurocs, columns=columns),
        "roc": pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=["data", "variant"]),
        "class-calibration": pd.concat(bins, ignore_index=True),
    }
    for name, table in tables.items():
        write_table(table, folder / f"{name}.csv")
    for data, about in found.items():
        for name, key, draw in (
            ("roc", "roc", roc_by_class),
            ("class-calibration", "calibration", calibration_by_class),
        ):
            table = tables[name]
            drawn = table[(table["data"] == data) & table["variant"].isin(variants)]
            if len(drawn):
                about[key] = f"{name}-{data}.png"
                draw(drawn, folder / about[key])
    return found


def has_class_figures(description: Mapping[str, Any]) -> bool:
    """Return whether rows have several labels, of so few classes that each can be shown."""
    return description["task"] == "multi-label" and len(description["classes"]) <= MOST_CLASSES


def mean_curve(scores: Sequence[np.ndarray], positive: np.ndarray) -> np.ndarray:
    """Return the mean over seeds of the true positive rate at RATES, float64 [101]; it begins at 0 and ends at 1."""
    rates = []
    for one in scores:
        false, true, _ = roc_curve(positive, one, drop_intermediate=False)
        rates.append(np.interp(RATES, false, true))
    return np.mean(rates, axis=0)


def calibration(scores: Sequence[np.ndarray], positive: np.ndarray) -> dict[str, np.ndarray]:
    """Return of each of BINS bins of probability how many answers it has, their mean, and the share that came true."""
    confidence, outcome = np.concatenate(scores).astype(np.float64), np.tile(positive, len(scores)).astype(np.float64)
    index = calibration_bin(confidence, BINS)
    counts = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, weights=one, minlength=BINS) / counts for one in (confidence, outcome)]
    low = np.arange(BINS) / BINS
    return {"low": low, "high": low + 1 / BINS, "count": counts, "confidence": means[0], "share": means[1]}
