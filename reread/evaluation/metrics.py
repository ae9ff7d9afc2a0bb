"""The metrics of one split: accuracy, recall, precision, F1, AUROC, exact match, log loss, calibration error,
confusion.

A comparison's metric is a key of TITLES, or recall, precision, f1 or auroc of one class: "recall:CLASS".

Shape legend: N rows, K classes, B calibration bins.

Expected calibration error: Guo, Pleiss, Sun, Weinberger 2017, "On Calibration of Modern Neural Networks",
section 2, with 15 bins of equal width ((b-1)/B, b/B]. The rest is defined as in scikit-learn.

A class without a single row in the split has no recall, precision, F1 and AUROC: macro means are taken over the
classes that are present, and ``absent_classes`` names the others. A precision without a prediction is 0.

Several labels are predicted where their probability is at least a threshold: 0.5, or, for the metrics whose name begins
with "tuned", the threshold with the best F1 on the validation split: one for all labels (micro F1) or one per label
(macro F1). Source: Yang, A Study of Thresholding Strategies for Text Categorization, SIGIR 2001.

Exact match is for rows that all have the same number of labels k, as MultiMNIST's have two: the share of rows whose k
most probable classes are their labels.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.storage.errors import InputError

CALIBRATION_BINS = 15
THRESHOLD = 0.5

# What a table calls each metric, and whether more of it is better.
TITLES = {
    "accuracy": "Accuracy",
    "macro_auroc": "Macro AUROC",
    "macro_f1": "Macro F1",
    "macro_recall": "Macro recall",
    "macro_precision": "Macro precision",
    "micro_f1": "Micro F1",
    "tuned_micro_f1": "Micro F1, tuned threshold",
    "tuned_macro_f1": "Macro F1, tuned thresholds",
    "loss": "Log loss",
    "expected_calibration_error": "Calibration error",
    "exact_match": "Exact match",
}
LOWER_IS_BETTER = ("loss", "expected_calibration_error")
# The metric of predictions at tuned thresholds, by the name of the one at 0.5.
TUNED = {"tuned_micro_f1": "micro_f1", "tuned_macro_f1": "macro_f1"}
OF_A_CLASS = {"recall": "Recall", "precision": "Precision", "f1": "F1", "auroc": "AUROC"}


def metric_names(task: str) -> list[str]:
    """The metrics that tables show, the one that chooses the champion first. Accuracy says nothing of many labels."""
    if task == "single-label":
        return ["accuracy", "macro_f1", "loss", "expected_calibration_error"]
    return ["macro_auroc", *TUNED, "loss", "expected_calibration_error", "micro_f1", "macro_f1", "exact_match"]


def all_metric_names(task: str) -> list[str]:
    """The metrics of a whole split, the shown ones first. Micro F1 and exact match of one label are accuracy."""
    left_out = ("micro_f1", *TUNED, "exact_match") if task == "single-label" else ("accuracy",)
    shown = metric_names(task)
    return [*shown, *(name for name in TITLES if name not in (*shown, *left_out))]


def comparison_metrics(task: str, classes: Iterable[str]) -> list[str]:
    """Every metric that a comparison may have: those of the whole split, and those of each class ("recall:CLASS")."""
    of_classes = [f"{name}:{one}" for one in classes for name in OF_A_CLASS]
    return [*all_metric_names(task), *of_classes]


def metric_value(metrics: Mapping[str, Any], name: str) -> float | None:
    """Return the metric ``name`` of ``split_metrics``; None where it is not defined."""
    measure, colon, one = name.partition(":")
    return metrics[measure][one] if colon else metrics[name]


def metric_title(name: str) -> str:
    """Return what a page calls a metric: "Macro F1", "Recall of CLASS"."""
    measure, colon, one = name.partition(":")
    return f"{OF_A_CLASS[measure]} of {one}" if colon else TITLES[name]


def bounds(name: str) -> tuple[float, float]:
    """Return the least and largest value of a metric; a log loss has no largest."""
    return (0.0, np.inf if name == "loss" else 1.0)


def higher_is_better(name: str) -> bool:
    return name not in LOWER_IS_BETTER


def one_hot(labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels int [N] or uint8 [N, K] as bool [N, K]."""
    labels = np.asarray(labels)
    return labels.astype(bool) if labels.ndim == 2 else labels[:, None] == np.arange(classes)


def row_losses(probabilities: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Log loss of each row in nats, float64 [N]: cross-entropy of one label, or the mean binary one of K labels.

    Probabilities are float32, so that one of 0 (or 1) means only that it was too small (or near) to be represented:
    it is taken as the last number before it.
    """
    labels = np.asarray(labels)
    information = np.finfo(np.float32)
    if labels.ndim == 1:
        chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        return -np.log(np.maximum(chosen, float(information.tiny)))
    half = float(information.eps) / 2
    clipped = np.clip(probabilities.astype(np.float64), half, 1 - half)
    return -np.where(labels.astype(bool), np.log(clipped), np.log1p(-clipped)).mean(axis=1)


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of several labels: ``overall`` for all, and ``by_class``, float64 [K]."""

    overall: float
    by_class: np.ndarray

    def decide(self, metric: str, probabilities: np.ndarray) -> np.ndarray:
        """Return the predictions that a tuned metric judges, as probabilities 0 or 1: float32 [N, K]."""
        return (probabilities >= (self.overall if metric == "tuned_micro_f1" else self.by_class)).astype(np.float32)


def choose_thresholds(probabilities: np.ndarray, labels: np.ndarray) -> Thresholds:
    """Return the thresholds with the best F1 on these rows, those of the validation split.

    probabilities: float32 [N, K]; labels: uint8 [N, K]. A class that no row has gets the overall threshold.
    """
    probabilities, truth = np.asarray(probabilities, np.float64), np.asarray(labels).astype(bool)
    overall = best_threshold(probabilities.ravel(), truth.ravel())
    by_class = [
        best_threshold(scores, positive) if positive.any() else overall
        for scores, positive in zip(probabilities.T, truth.T, strict=True)
    ]
    return Thresholds(overall, np.array(by_class))


def best_threshold(scores: np.ndarray, positive: np.ndarray) -> float:
    """Return the threshold of the best F1, halfway between two scores: scores float64 [N], positive bool [N].

    Of equal ones the highest; 0.5 where no row is positive.
    """
    if not positive.any():
        return THRESHOLD
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    # Rows with equal scores are predicted together.
    last = np.append(ordered[1:] < ordered[:-1], True)
    lower = np.append(ordered[1:], 0.0)
    taken = np.arange(1, len(scores) + 1)
    f1 = 2 * np.cumsum(positive[order]) / (taken + positive.sum())
    place = int(np.where(last, f1, -1.0).argmax())
    return float((ordered[place] + lower[place]) / 2)


def predicted(probabilities: np.ndarray, task: str) -> np.ndarray:
    """The predicted class, int [N], or the predicted labels, bool [N, K]."""
    return probabilities.argmax(axis=1) if task == "single-label" else probabilities >= THRESHOLD


def confidence_and_outcome(probabilities: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return what calibration compares, float64 [N] or [N K] each: the probability, and the outcome (0 or 1).

    One label: the highest probability of a row. Several labels: each row's probability of each label.
    """
    if np.asarray(labels).ndim == 1:
        guess = probabilities.argmax(axis=1)
        confidence = probabilities[np.arange(len(guess)), guess]
        return confidence.astype(np.float64), (guess == labels).astype(np.float64)
    return probabilities.astype(np.float64).ravel(), np.asarray(labels, dtype=np.float64).ravel()


def calibration_bin(confidence: np.ndarray, bins: int = CALIBRATION_BINS) -> np.ndarray:
    """The bin ((b-1)/B, b/B] of each confidence, int [N]; 0 itself belongs to the first."""
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)


def calibration_table(
    probabilities: np.ndarray, labels: np.ndarray, bins: int = CALIBRATION_BINS
) -> list[dict[str, Any]]:
    """One row a bin: its edges, how many fell in, their mean confidence and mean outcome (None where empty)."""
    confidence, outcome = confidence_and_outcome(probabilities, labels)
    index = calibration_bin(confidence, bins)
    counts = np.bincount(index, minlength=bins)
    confidences = np.bincount(index, weights=confidence, minlength=bins)
    outcomes = np.bincount(index, weights=outcome, minlength=bins)
    return [
        {
            "low": number / bins,
            "high": (number + 1) / bins,
            "count": int(count),
            "confidence": float(confidences[number] / count) if count else None,
            "accuracy": float(outcomes[number] / count) if count else None,
        }
        for number, count in enumerate(counts)
    ]


def expected_calibration_error(table: list[dict[str, Any]]) -> float:
    """Mean distance between confidence and outcome, weighted by the share of each bin."""
    filled = [row for row in table if row["count"]]
    return sum(row["count"] * abs(row["confidence"] - row["accuracy"]) for row in filled) / sum(
        row["count"] for row in filled
    )


def class_scores(measure: str, hits: np.ndarray, guesses: np.ndarray, truths: np.ndarray) -> np.ndarray:
    """Return recall, precision or F1 of each class, float64 [..., K], from counts: true, predicted, and both (hits)."""
    numerator, denominator = {
        "recall": (hits, truths),
        "precision": (hits, guesses),
        "f1": (2 * hits, guesses + truths),
    }[measure]
    return np.divide(numerator, denominator, out=np.zeros(np.shape(hits)), where=denominator > 0)


def rank_pairs(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rank the positives of a class among its negatives: scores float [N], positive bool [N].

    Returns the rows of the negatives and of the positives in order of their scores, and for each positive the number of
    negatives with a lower score, and with a score that is not higher.
    """
    order = np.argsort(scores, kind="stable")
    negatives, positives = order[~positive[order]], order[positive[order]]
    lower = np.searchsorted(scores[negatives], scores[positives], side="left")
    not_higher = np.searchsorted(scores[negatives], scores[positives], side="right")
    return negatives, positives, lower, not_higher


def auroc(scores: np.ndarray, positive: np.ndarray) -> float | None:
    """Return the area under the ROC curve, ties counted one half; None where only one outcome occurs."""
    negatives, positives, lower, not_higher = rank_pairs(scores, positive)
    if not len(negatives) or not len(positives):
        return None
    return float((lower + not_higher).sum() / (2 * len(negatives) * len(positives)))


def exact_matches(probabilities: np.ndarray, truth: np.ndarray) -> np.ndarray | None:
    """Return whether each row's labels, bool [N, K], are its most probable classes: bool [N].

    Equal probabilities of a label and of another class are no match. None unless all rows have as many labels, at
    least one and not all.
    """
    labels = truth.sum(axis=1)
    if not len(labels) or (labels != labels[0]).any() or not 0 < labels[0] < truth.shape[1]:
        return None
    lowest = np.where(truth, probabilities, np.inf).min(axis=1)
    return lowest > np.where(truth, -np.inf, probabilities).max(axis=1)


def metrics_of_splits(
    probabilities: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray], task: str, classes: list[str]
) -> dict[str, dict[str, Any]]:
    """Return ``split_metrics`` of each split; several labels have thresholds where there is a validation split."""
    thresholds = None
    if task == "multi-label" and "validation" in probabilities:
        thresholds = choose_thresholds(probabilities["validation"], labels["validation"])
    return {split: split_metrics(one, labels[split], task, classes, thresholds) for split, one in probabilities.items()}


def thresholds_of(metrics: Mapping[str, Any]) -> Thresholds | None:
    """Return the thresholds in the metrics of a split; None of one label, and where none were chosen."""
    found = metrics.get("thresholds")
    return Thresholds(found["overall"], np.array(list(found["by_class"].values()))) if found else None


def split_metrics(
    probabilities: np.ndarray,
    labels: np.ndarray,
    task: str,
    classes: list[str],
    thresholds: Thresholds | None = None,
) -> dict[str, Any]:
    """All metrics of one split, as values that JSON can hold.

    probabilities: float32 [N, K]; labels: int [N] or uint8 [N, K]. thresholds: of several labels; without them the
    tuned metrics are None. InputError when there is no row, when the
    shapes do not fit, or when a probability is not finite.
    """
    probabilities, labels = np.asarray(probabilities), np.asarray(labels)
    expected = (len(labels), len(classes))
    if not len(labels):
        raise InputError("the split has no rows: nothing can be measured on it; give it some in the manifest")
    if probabilities.shape != expected:
        raise InputError(f"probabilities have shape {probabilities.shape} where the labels need {expected}")
    if not np.isfinite(probabilities).all():
        raise InputError(
            "a probability is not finite: the weights of the run are broken; remove the run and train it again"
        )
    truth, guess = one_hot(labels, len(classes)), one_hot(predicted(probabilities, task), len(classes))
    present = np.asarray(truth.any(axis=0))
    counts = [(guess & truth).sum(axis=0), guess.sum(axis=0), truth.sum(axis=0)]
    table = calibration_table(probabilities, labels)
    areas = [auroc(probabilities[:, number], truth[:, number]) for number in range(len(classes))]
    result: dict[str, Any] = {
        "rows": len(labels),
        "loss": float(row_losses(probabilities, labels).mean()),
        "expected_calibration_error": float(expected_calibration_error(table)),
        "calibration": table,
        "absent_classes": [name for name, there in zip(classes, present, strict=True) if not there],
        "auroc": dict(zip(classes, areas, strict=True)),
        "macro_auroc": mean_or_none(areas),
    }
    for measure in ("recall", "precision", "f1"):
        scores = class_scores(measure, *counts)
        defined = [float(score) if there else None for score, there in zip(scores, present, strict=True)]
        result[measure] = dict(zip(classes, defined, strict=True))
        result[f"macro_{measure}"] = mean_or_none(defined)
    if task == "single-label":
        result["accuracy"] = float(truth[guess].mean())
        cells = np.ravel_multi_index((labels, guess.argmax(axis=1)), (len(classes), len(classes)))
        result["confusion"] = np.bincount(cells, minlength=len(classes) ** 2).reshape(len(classes), -1).tolist()
        return result
    result["micro_f1"] = float(class_scores("f1", *(count.sum() for count in counts))) if present.any() else None
    result |= tuned_metrics(probabilities, truth, present, classes, thresholds)
    matches = exact_matches(probabilities, truth)
    result["exact_match"] = None if matches is None else float(matches.mean())
    result["confusion"] = {
        name: {
            "true_negative": int((~truth[:, number] & ~guess[:, number]).sum()),
            "false_positive": int((~truth[:, number] & guess[:, number]).sum()),
            "false_negative": int((truth[:, number] & ~guess[:, number]).sum()),
            "true_positive": int((truth[:, number] & guess[:, number]).sum()),
        }
        for number, name in enumerate(classes)
    }
    return result


def tuned_metrics(
    probabilities: np.ndarray, truth: np.ndarray, present: np.ndarray, classes: list[str], thresholds: Thresholds | None
) -> dict[str, Any]:
    """Return F1 at the tuned thresholds: micro, macro over the classes that are present, and of each class."""
    if thresholds is None:
        return {**dict.fromkeys(TUNED), "tuned_f1": dict.fromkeys(classes), "thresholds": None}

    def f1(metric: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        guess = thresholds.decide(metric, probabilities).astype(bool)
        return (guess & truth).sum(axis=0), guess.sum(axis=0), truth.sum(axis=0)

    overall = class_scores("f1", *(count.sum() for count in f1("tuned_micro_f1")))
    scores = class_scores("f1", *f1("tuned_macro_f1"))
    defined = [float(score) if there else None for score, there in zip(scores, present, strict=True)]
    return {
        "tuned_micro_f1": float(overall) if present.any() else None,
        "tuned_macro_f1": mean_or_none(defined),
        "tuned_f1": dict(zip(classes, defined, strict=True)),
        "thresholds": {
            "overall": thresholds.overall,
            "by_class": dict(zip(classes, thresholds.by_class.tolist(), strict=True)),
        },
    }


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are defined; None where none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None
