"""Each class by itself: its scores with intervals, ROC curve and calibration, and intervals of several labels.

classes.csv            data, variant, label, rows, positives, positive_groups, metric, mean, low, high: the mean over
                       seeds of each class's recall, precision and F1 of one label, or AUROC and F1 at the threshold
                       chosen on validation of several, with the interval over seeds and items of
                       reread.verdicts.resampling
intervals.csv          data, variant, metric, mean, low, high: the same of each metric of the whole split
roc.csv                data, variant, label, false_positive_rate, true_positive_rate: the mean over seeds of the true
                       positive rate at each false positive rate (Fawcett 2006, "An introduction to ROC analysis")
class-calibration.csv  data, variant, label, low, high, count, confidence, share: all seeds together

Data with one label per row have classes.csv alone, without intervals. A baseline counts as a variant of one seed.

Shape legend: n seeds, m items, K classes, R resamples.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.metrics import roc_curve

from reread.evaluation.baselines import Baseline
from reread.evaluation.records import RunRecord
from reread.evaluation.repeated_baseline import seeds_of
from reread.evaluation.tables import write_table
from reread.goals import bounds, goal
from reread.goals.classification import calibration_bin, class_scores, one_hot, rank_pairs, won_pairs
from reread.goals.multi_label import Thresholds, thresholds_of
from reread.verdicts.items import Items, errors_of, item_deviation, of_seeds, quantile
from reread.verdicts.resampling import RESAMPLES, Resampled, group_numbers, item_counts
from reread.verdicts.statistics import CONFIDENCE

BINS = 10
RATES = np.linspace(0, 1, 101)
# The resamples of many classes are fewer, so that items x classes x seeds x resamples stays below this.
MOST_CELLS, FEWEST_RESAMPLES = 3 * 10**8, 200
OF_ONE_LABEL = ("recall", "precision", "f1")
# More classes than this have figures of the worst ten alone; tables have all.
MOST_DRAWN, WORST = 14, 10


@dataclass(frozen=True)
class Score:
    """A mean over seeds and its interval over seeds and items, within [0, 1]; None where it is not defined."""

    mean: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def interval(self) -> dict[str, float | None]:
        """Low and high as a mapping."""
        return {"low": self.low, "high": self.high}


@dataclass(frozen=True)
class Subject:
    """A variant or a baseline on one split: its metrics and probabilities float32 [m, K], one per seed.

    labels: int32 [m] or uint8 [m, K]; groups: of each item, or None; chosen: the metrics of each seed whose thresholds
    are used, those of the validation split.
    """

    data: str
    name: str
    description: Mapping[str, Any]
    labels: np.ndarray
    groups: np.ndarray | None
    metrics: Sequence[Mapping[str, Any]]
    probabilities: Sequence[np.ndarray]
    chosen: Sequence[Mapping[str, Any]] = field(repr=False)

    @property
    def classes(self) -> list[str]:
        return self.description["classes"]

    @property
    def several(self) -> bool:
        return self.description["task"] == "multi-label"

    @cached_property
    def thresholds(self) -> list[Thresholds]:
        """The thresholds of each seed, of several labels."""
        return [thresholds for metrics in self.chosen if (thresholds := thresholds_of(metrics))]


def subjects(
    records: Sequence[RunRecord], baselines: Mapping[str, Mapping[str, Baseline]], split: str
) -> list[Subject]:
    """Return every variant, then every baseline, of each data set."""
    every = []
    for data in dict.fromkeys(record.data for record in records):
        # Of several labels each class is measured by probabilities, which results/ need not keep.
        of_data = [
            record
            for record in records
            if record.data == data
            and goal(record.description["task"]).output_titles()
            and (record.description["task"] == "single-label" or record.has_probabilities(split))
        ]
        if not of_data:
            continue
        first = of_data[0]
        about = (first.description, first.labels(split), first.groups(split))
        for name in dict.fromkeys(record.variant for record in of_data):
            of_variant = [record for record in of_data if record.variant == name]
            measured = [record.metrics(list(dict.fromkeys(["validation", split]))) for record in of_variant]
            every.append(
                Subject(
                    data, name, *about, [metrics[split] for metrics in measured],
                    [record.probabilities(split) for record in of_variant],
                    [metrics["validation"] for metrics in measured],
                )
            )  # fmt: skip
        for baseline in baselines.get(data, {}).values():
            each = list(seeds_of(baseline).values())
            measured = [seed.metrics[split] for seed in each]
            probabilities = [seed.probabilities[split] for seed in each]
            validated = [seed.metrics["validation"] for seed in each]
            every.append(Subject(data, baseline.name, *about, measured, probabilities, validated))
    return every


@dataclass(frozen=True)
class Measured:
    """The scores of a subject by class and metric, and its metrics of the whole split."""

    by_class: Mapping[str, Mapping[str, Score]]
    whole: Mapping[str, Score]


def measure(subject: Subject, confidence: float = CONFIDENCE, resamples: int = RESAMPLES) -> Measured:
    """Return the scores of several labels with their intervals.

    Resamples in which a class has only one outcome do not count for its AUROC. A class with fewer than two groups (or
    rows) that have it, or lack it, has no interval: no other rows were seen that it could speak for.
    """
    truth, items = np.asarray(subject.labels).astype(bool), len(subject.labels)
    numbers = group_numbers(subject.groups, items)
    classes, seeds = subject.classes, len(subject.probabilities)
    affordable = MOST_CELLS // max(1, items * len(classes) * seeds)
    resamples = int(np.clip(affordable, min(FEWEST_RESAMPLES, resamples), resamples))
    ranks = [[rank_pairs(scores[:, k], truth[:, k]) for scores in subject.probabilities] for k in range(len(classes))]
    guesses = [
        thresholds.decide("tuned_macro_f1", scores)
        for thresholds, scores in zip(subject.thresholds, subject.probabilities, strict=True)
    ]
    parts = [(guess * truth, guess.astype(np.float64), truth.astype(np.float64)) for guess in guesses]
    names = goal(subject.description["task"]).shown_names
    functions = {name: function for name in names if (function := _resampled(subject, name))}
    aurocs, f1s, wholes = [], [], []
    for counts in item_counts(resamples, items, numbers):
        by_item = np.ascontiguousarray(counts.T)
        pairs = np.array([[won_pairs(ranked, by_item) for ranked in of_class] for of_class in ranks])  # [K, n, 2, R]
        with np.errstate(invalid="ignore"):
            aurocs.append(pairs[:, :, 0] / pairs[:, :, 1])
        f1s.append(np.array([class_scores("f1", *(counts @ part for part in of_seed)).T for of_seed in parts]))
        wholes.append([function(counts).T for function in functions.values()])
    auroc, f1 = np.concatenate(aurocs, axis=2), np.concatenate(f1s, axis=2).swapaxes(0, 1)  # [K, n, R] each
    whole = dict(zip(functions, np.concatenate(wholes, axis=2), strict=True)) if functions else {}
    with np.errstate(invalid="ignore"):
        known = ~np.isnan(auroc)
        total = np.where(known, auroc, 0.0).sum(axis=0)
        whole["macro_auroc"] = total / np.maximum(known.sum(axis=0), 1)
    units = items if numbers is None else int(numbers.max()) + 1
    by_class = {}
    for k, label in enumerate(classes):
        having, lacking = (_units(rows, numbers) for rows in (truth[:, k], ~truth[:, k]))
        by_class[label] = {
            "auroc": _score(
                [metrics["auroc"][label] for metrics in subject.metrics], auroc[k], min(having, lacking), confidence
            ),
            "f1": _score([metrics["tuned_f1"][label] for metrics in subject.metrics], f1[k], having, confidence),
        }
    return Measured(
        by_class,
        {
            name: _score([metrics[name] for metrics in subject.metrics], whole[name], units, confidence, bounds(name))
            for name in names
            if name in whole
        },
    )


def _resampled(subject: Subject, metric: str) -> Resampled | None:
    """Return the metric of the seeds as a function of counts; None of one that is undefined or a mean of classes'."""
    if metric == "macro_auroc" or any(metrics[metric] is None for metrics in subject.metrics):
        return None
    asked = goal(subject.description["task"])
    judged = (
        asked.judged(metric, own, chosen) for own, chosen in zip(subject.probabilities, subject.chosen, strict=True)
    )
    return asked.metric(metric, subject.classes).resampled(judged, subject.labels)


def _units(rows: np.ndarray, groups: np.ndarray | None) -> int:
    """Return how many rows, bool [m], there are, or groups that have one."""
    return int(rows.sum()) if groups is None else len(np.unique(groups[rows]))


def _score(
    values: Sequence[float | None],
    drawn: np.ndarray,
    units: int,
    confidence: float,
    limits: tuple[float, float] = (0.0, 1.0),
) -> Score:
    """values: of each seed; drawn: of each seed on each resample, float64 [n, R], NaN where it is not defined.

    units: how many rows or groups decide how well the spread between items is known.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return Score()
    mean = float(np.mean(known))
    defined = drawn[:, ~np.isnan(drawn).any(axis=0)]
    if units < 2 or defined.shape[1] < 2:
        return Score(mean)
    item = item_deviation(defined.T)
    half = quantile(errors_of([of_seeds(np.array(known))], Items(item, units)), (1 - confidence) / 2)
    return Score(mean, max(limits[0], mean - half), min(limits[1], mean + half))


def of_one_label(subject: Subject) -> Measured:
    """Return the mean over seeds of each class's recall, precision and F1, without intervals."""

    def mean(metric: str, label: str) -> Score:
        values = [metrics[metric][label] for metrics in subject.metrics]
        return Score() if None in values else Score(float(np.mean(values)))

    return Measured({label: {name: mean(name, label) for name in OF_ONE_LABEL} for label in subject.classes}, {})


def write_class_figures(
    records: Sequence[RunRecord],
    baselines: Mapping[str, Mapping[str, Baseline]],
    split: str,
    variants: Set[str],
    folder: Path,
) -> dict[str, dict[str, Any]]:
    """Write the tables; return for each data set what the report shows.

    ``classes``: of each class its rows, groups, and the Score of each subject and metric; ``names`` of the subjects;
    ``metrics`` of a class; ``intervals``: for each subject and metric of the whole split its Score, of several labels;
    ``groups``: whether groups are drawn; ``worst``: the labels that figures show; ``roc`` and ``calibration``: tables
    of ``variants`` and baselines, of several labels.
    """
    rows, wholes, curves, bins = [], [], [], []
    by_data: dict[str, dict[str, Any]] = {}
    for subject in subjects(records, baselines, split):
        truth = one_hot(subject.labels, len(subject.classes))
        numbers = group_numbers(subject.groups, len(truth)) if subject.several else None
        measured = measure(subject) if subject.several else of_one_label(subject)
        metrics = list(next(iter(measured.by_class.values())))
        empty = {"classes": {}, "names": [], "metrics": metrics, "intervals": {}, "groups": numbers is not None}
        about = by_data.setdefault(subject.data, empty | {"several": subject.several})
        about["names"].append(subject.name)
        about["intervals"][subject.name] = measured.whole
        start = {"data": subject.data, "variant": subject.name}
        wholes += [{**start, "metric": name, **vars(score)} for name, score in measured.whole.items()]
        for k, label in enumerate(subject.classes):
            counts = {"positives": int(truth[:, k].sum()), "positive_groups": _units(truth[:, k], numbers)}
            shown = about["classes"].setdefault(label, {**counts, "scores": {}})
            shown["scores"][subject.name] = measured.by_class[label]
            of_class = {**start, "label": label, "rows": len(truth), **counts}
            rows += [{**of_class, "metric": name, **vars(score)} for name, score in measured.by_class[label].items()]
            if subject.several:
                scores = [probabilities[:, k] for probabilities in subject.probabilities]
                if 0 < counts["positives"] < len(truth):
                    rates = {"false_positive_rate": RATES, "true_positive_rate": mean_curve(scores, truth[:, k])}
                    curves.append(pd.DataFrame({**start, "label": label, **rates}))
                bins.append(pd.DataFrame(calibration(scores, truth[:, k])).assign(**start, label=label))
    tables = {"classes": pd.DataFrame(rows)} if rows else {}
    if wholes:
        empty_curves = pd.DataFrame(columns=["data", "variant", "label", "false_positive_rate", "true_positive_rate"])
        tables["intervals"] = pd.DataFrame(wholes)
        tables["roc"] = pd.concat(curves, ignore_index=True) if curves else empty_curves
        tables["class-calibration"] = pd.concat(bins, ignore_index=True)
    for name, table in tables.items():
        write_table(table, folder / f"{name}.csv")
    for data, about in by_data.items():
        about["worst"] = worst_classes(about)
        for key, name in (("roc", "roc"), ("calibration", "class-calibration")):
            if about["several"]:
                table = tables[name]
                baseline = ~table["variant"].isin({record.variant for record in records})
                shown = (table["data"] == data) & (table["variant"].isin(variants) | baseline)
                about[key] = table[shown & table["label"].isin(about["worst"])]
    return by_data


def worst_classes(about: Mapping[str, Any]) -> list[str]:
    """Return the labels that figures show, in order: all of a few, else those with the lowest mean F1."""
    labels = list(about["classes"])
    if len(labels) <= MOST_DRAWN:
        return labels

    def rank(label: str) -> tuple[float, ...]:
        scores = about["classes"][label]["scores"].values()
        means = [
            [of_variant[metric].mean for of_variant in scores] for metric in dict.fromkeys(["f1", *about["metrics"]])
        ]
        return tuple(
            float(np.mean(known)) if (known := [value for value in values if value is not None]) else 2.0
            for values in means
        )

    return sorted(labels, key=rank)[:WORST]


def mean_curve(scores: Sequence[np.ndarray], positive: np.ndarray) -> np.ndarray:
    """Return the mean over seeds of the true positive rate at RATES, float64 [101]; it begins at 0 and ends at 1."""
    rates = []
    for probabilities in scores:
        false, true, _ = roc_curve(positive, probabilities, drop_intermediate=False)
        rates.append(np.interp(RATES, false, true))
    return np.mean(rates, axis=0)


def calibration(scores: Sequence[np.ndarray], positive: np.ndarray) -> dict[str, np.ndarray]:
    """Return of each of BINS bins of probability how many answers it has, their mean, and the share that came true."""
    confidence, outcome = np.concatenate(scores).astype(np.float64), np.tile(positive, len(scores)).astype(np.float64)
    index = calibration_bin(confidence, BINS)
    counts = np.bincount(index, minlength=BINS)
    with np.errstate(invalid="ignore"):
        means = [np.bincount(index, weights=values, minlength=BINS) / counts for values in (confidence, outcome)]
    low = np.arange(BINS) / BINS
    return {"low": low, "high": low + 1 / BINS, "count": counts, "confidence": means[0], "share": means[1]}
