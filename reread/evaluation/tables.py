"""The tables that the charts are made of, and that ``dvc plots`` reads with reread/evaluation/templates/plots/*.json.

curves.csv        data, variant, seed, epoch, training_loss, validation_loss, ...: one row per epoch of each run;
                  validation_comparable_loss has the label smoothing and class weights of training_loss; it is empty
                  of a run of older code, and of one whose training loss has a term that held-out rows do not have
calibration.csv   data, variant, low, high, count, confidence, accuracy: one row per bin, all seeds together
confusion.csv     data, variant, label, actual, predicted, count: all seeds together; ``label`` is empty where each
                  row has one label, else actual and predicted are yes or no, at the threshold of each label that
                  validation chose (reread/goals/multi_label.py)

calibration.csv and confusion.csv have the baselines after the variants, by their titles.
betas.csv         data, variant, seed, layer, name, beta, low, high: one row per layer that learnt a beta; over the
                  channels of a layer that has one for each, ``beta`` is their mean
differences.csv   comparison, ..., seed, difference, and the mean and interval: one row per comparison and seed of its
                  treatment; its difference from the mean of the control's seeds, or from its pair
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from reread.evaluation.baselines import Baseline
from reread.evaluation.records import RunRecord
from reread.goals.classification import THRESHOLD
from reread.goals.multi_label import thresholds_of
from reread.storage.files import write_text
from reread.verdicts.rule import Verdict

Baselines = Mapping[str, Mapping[str, Baseline]]

# A term that training adds to the loss and held-out rows do not have: the setting that weighs it, by objective.
ADDED_TERM = {"margin": "reconstruction_weight"}
CURVE_COLUMNS = [
    "epoch",
    "training_loss",
    "validation_loss",
    "validation_comparable_loss",
    "training_accuracy",
    "validation_accuracy",
    "validation_score",
]


def write_table(table: pd.DataFrame, path: Path) -> None:
    r"""CSV with six digits, '\\n' and no index: the same bytes for the same table."""
    write_text(path, table.to_csv(index=False, float_format="%.6g", lineterminator="\n"))


def curves(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the history of every run."""
    parts = []
    for record in records:
        history = record.history().reindex(columns=CURVE_COLUMNS)
        if not has_comparable_losses(record.job):
            history["validation_comparable_loss"] = np.nan
        history.insert(0, "seed", record.seed)
        history.insert(0, "variant", record.variant)
        history.insert(0, "data", record.data)
        parts.append(history)
    return pd.concat(parts, ignore_index=True)


def has_comparable_losses(job: Mapping[str, Any]) -> bool:
    """Return whether a run's training loss has only terms that its validation loss has too."""
    objective = job.get("training", {}).get("objective") or {"name": ""}
    term = ADDED_TERM.get(objective["name"])
    return term is None or not objective.get(term, True) or not job["network"].get("reconstruction")


def measured_on(
    records: Sequence[RunRecord], baselines: Baselines, split: str
) -> Iterator[tuple[str, str, Mapping[str, Any], list[str]]]:
    """Yield data, name, metrics of the split and classes of every run, then of every baseline."""
    classes = {record.data: record.description["classes"] for record in records}
    for record in records:
        yield record.data, record.variant, record.metrics([split])[split], classes[record.data]
    for data in classes:
        for baseline in baselines.get(data, {}).values():
            yield data, baseline.name, baseline.metrics[split], classes[data]


def calibration(records: Sequence[RunRecord], split: str, baselines: Baselines) -> pd.DataFrame:
    """Return each variant's calibration bins: counts added over seeds, confidence and accuracy weighted by them."""
    rows = [
        {"data": data, "variant": name, **row}
        for data, name, metrics, _ in measured_on(records, baselines, split)
        for row in metrics.get("calibration", ())  # a number has no confidence
    ]
    table = pd.DataFrame(rows, columns=["data", "variant", "low", "high", "count", "confidence", "accuracy"])
    for column in ("confidence", "accuracy"):
        table[column] = table[column].astype(float).fillna(0.0) * table["count"]
    groups = table.groupby(["data", "variant", "low", "high"], sort=False)
    pooled = groups[["count", "confidence", "accuracy"]].sum().reset_index()
    for column in ("confidence", "accuracy"):
        pooled[column] = (pooled[column] / pooled["count"]).where(pooled["count"] > 0)
    return pooled


def confusion(records: Sequence[RunRecord], split: str, baselines: Baselines) -> pd.DataFrame:
    """Return how often each class was predicted for each, counts added over seeds.

    Each of several labels is predicted where its probability is at least its threshold.
    """
    rows = []
    for data, variant, metrics, classes in measured_on(records, baselines, split):
        if isinstance(metrics.get("confusion"), list):
            for truth, counts in zip(classes, metrics["confusion"], strict=True):
                rows += [[data, variant, "", truth, guess, count] for guess, count in zip(classes, counts, strict=True)]
    for data, variant, truths, guesses, classes in labels_predicted(records, baselines, split):
        for number, label in enumerate(classes):
            there, given = truths[:, number], guesses[:, number]
            rows += [
                [data, variant, label, "yes" if actual else "no", "yes" if predicted else "no",
                 int(((there == actual) & (given == predicted)).sum())]
                for actual in (False, True)
                for predicted in (False, True)
            ]  # fmt: skip
    keys = ["data", "variant", "label", "actual", "predicted"]
    return pd.DataFrame(rows, columns=[*keys, "count"]).groupby(keys, sort=False)["count"].sum().reset_index()


def labels_predicted(
    records: Sequence[RunRecord], baselines: Baselines, split: str
) -> Iterator[tuple[str, str, np.ndarray, np.ndarray, list[str]]]:
    """Yield data, name, labels and predictions, bool [m, K] each, and classes of every run, then of every baseline.

    Only of data with several labels. A label's threshold is the one with the best F1 on validation.
    """
    first = {record.data: record for record in reversed(records) if record.description["task"] == "multi-label"}
    truths = {data: record.labels(split).astype(bool) for data, record in first.items()}

    def guesses(validated: Mapping[str, Any], probabilities: np.ndarray) -> np.ndarray:
        chosen = thresholds_of(validated)
        decided = probabilities >= THRESHOLD if chosen is None else chosen.decide("tuned_macro_f1", probabilities)
        return decided.astype(bool)

    for record in records:
        if record.data in first and record.has_probabilities(split):
            guessed = guesses(record.metrics(["validation"])["validation"], record.probabilities(split))
            yield record.data, record.variant, truths[record.data], guessed, record.description["classes"]
    for data, record in first.items():
        for baseline in baselines.get(data, {}).values():
            guessed = guesses(baseline.metrics["validation"], baseline.probabilities[split])
            yield data, baseline.name, truths[data], guessed, record.description["classes"]


def betas(records: Sequence[RunRecord]) -> pd.DataFrame:
    """Return the learnt betas of every run that has some, its layers numbered from 1."""
    columns = ["data", "variant", "seed", "layer", "name", "beta", "low", "high"]
    rows = [
        [record.data, record.variant, record.seed, layer, name, sum(values) / len(values), min(values), max(values)]
        for record in records
        for layer, (name, values) in enumerate(record.result.get("betas", {}).items(), 1)
    ]
    return pd.DataFrame(rows, columns=columns)


def differences(verdicts: Sequence[Verdict]) -> pd.DataFrame:
    """Return the difference of each seed of each comparison that was measured (``Verdict.differences``)."""
    columns = [
        "comparison", "treatment", "control", "metric", "verdict", "seed", "difference",
        "mean", "low", "high", "method", "equivalence_margin", "confidence",
    ]  # fmt: skip
    rows = [
        [
            verdict.comparison.name, verdict.comparison.treatment, verdict.comparison.control,
            verdict.comparison.metric, verdict.verdict,
            seed, difference, verdict.mean, verdict.interval["low"], verdict.interval["high"],
            verdict.method, verdict.equivalence_margin, verdict.interval_level,
        ]
        for verdict in verdicts
        if verdict.interval
        for seed, difference in verdict.differences.items()
    ]  # fmt: skip
    # With a single seed there is no interval, and a column of None alone would not be numeric.
    return pd.DataFrame(rows, columns=columns).astype({"low": float, "high": float})
