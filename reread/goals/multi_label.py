"""Several labels per row: a target is uint8 [m, K] of 0 and 1; a prediction the probability of each, float32 [m, K].

A label is predicted where its probability is at least a threshold: 0.5, or, for the metrics whose name begins with
"tuned", the threshold with the best F1 on the validation split: one for all labels (micro F1) or one per label
(macro F1). Source: Yang, A Study of Thresholding Strategies for Text Categorization, SIGIR 2001.

Exact match is for rows that all have the same number of labels k, as MultiMNIST's have two: the share of rows whose k
most probable classes are their labels.

Shape legend: m rows, K classes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import Array, Metric
from reread.goals.classification import (
    MATCHED,
    THRESHOLD,
    Classification,
    above_threshold,
    by_class,
    class_scores,
    confusion_counts,
    from_counts,
    mean_or_none,
    one_hot,
    shared_metrics,
)
from reread.storage.errors import InputError

# The metric at 0.5 by the name of the one at tuned thresholds.
TUNED = {"tuned_micro_f1": "micro_f1", "tuned_macro_f1": "macro_f1"}
SHARED = shared_metrics(above_threshold)
COUNTS = confusion_counts(above_threshold)


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of several labels: ``overall`` for all, and ``by_class``, float64 [K]."""

    overall: float
    by_class: Array

    def decide(self, metric: str, probabilities: Array) -> Array:
        """Return the predictions that a tuned metric judges, as probabilities 0 or 1: float32 [m, K]."""
        decided: Array = probabilities >= (self.overall if metric == "tuned_micro_f1" else self.by_class)
        return decided.astype(np.float32)


def choose_thresholds(probabilities: Array, labels: Array) -> Thresholds:
    """Return the thresholds with the best F1 on these rows, those of the validation split.

    probabilities: float32 [m, K]; labels: uint8 [m, K]. A class that no row has gets the overall threshold.
    """
    probabilities, truth = np.asarray(probabilities, np.float64), np.asarray(labels).astype(bool)
    overall = best_threshold(probabilities.ravel(), truth.ravel())
    of_classes = [
        best_threshold(scores, positive) if positive.any() else overall
        for scores, positive in zip(probabilities.T, truth.T, strict=True)
    ]
    return Thresholds(overall, np.array(of_classes))


def best_threshold(scores: Array, positive: Array) -> float:
    """Return the threshold of the best F1, halfway between two scores: scores float64 [m], positive bool [m].

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


def thresholds_of(metrics: Mapping[str, Any]) -> Thresholds | None:
    """Return the thresholds in the metrics of a split; None of one label, and where none were chosen."""
    chosen = metrics.get("thresholds")
    return Thresholds(chosen["overall"], np.array(list(chosen["by_class"].values()))) if chosen else None


def exact_matches(probabilities: Array, labels: Array) -> Array | None:
    """Return whether each row's labels, uint8 or bool [m, K], are its most probable classes: float64 [m, 1].

    Equal probabilities of a label and of another class are no match. None unless all rows have as many labels, at
    least one and not all.
    """
    truth = np.asarray(labels).astype(bool)
    number = truth.sum(axis=1)
    if not len(number) or (number != number[0]).any() or not 0 < number[0] < truth.shape[1]:
        return None
    lowest = np.where(truth, probabilities, np.inf).min(axis=1)
    matched: Array = (lowest > np.where(truth, -np.inf, probabilities).max(axis=1))[:, None]
    return matched.astype(np.float64)


def tuned_metrics(
    probabilities: Array, labels: Array, outputs: Sequence[str], thresholds: Thresholds | None
) -> dict[str, Any]:
    """Return F1 at the tuned thresholds: micro, macro over the classes that are present, and of each class."""
    if thresholds is None:
        return {**dict.fromkeys(TUNED), "tuned_f1": dict.fromkeys(outputs), "thresholds": None}
    truth = np.asarray(labels).astype(bool)
    guess = thresholds.decide("tuned_macro_f1", probabilities).astype(bool)
    scores = class_scores("f1", (guess & truth).sum(axis=0), guess.sum(axis=0), truth.sum(axis=0))
    of_classes = by_class(scores, np.asarray(truth.any(axis=0)), outputs)
    overall = MICRO_F1.value(thresholds.decide("tuned_micro_f1", probabilities), labels)
    return {
        "tuned_micro_f1": overall,
        "tuned_macro_f1": mean_or_none(of_classes.values()),
        "tuned_f1": of_classes,
        "thresholds": {
            "overall": thresholds.overall,
            "by_class": dict(zip(outputs, thresholds.by_class.tolist(), strict=True)),
        },
    }


def confusion_of(truth: Array, guess: Array) -> dict[str, int]:
    """Return how often one label was predicted where it is and where it is not: truth and guess bool [m]."""
    return {
        "true_negative": int((~truth & ~guess).sum()),
        "false_positive": int((~truth & guess).sum()),
        "false_negative": int((truth & ~guess).sum()),
        "true_positive": int((truth & guess).sum()),
    }


MICRO_F1 = Metric("micro_f1", "Micro F1", COUNTS, from_counts("f1", "micro"))


@dataclass(frozen=True, kw_only=True)
class MultiLabel(Classification):
    """Several labels per row."""

    def targets(self, labels: Sequence[Sequence[int]], outputs: int) -> Array:
        """Return the labels of rows, class numbers, as uint8 [m, K]."""
        encoded = np.zeros((len(labels), outputs), dtype=np.uint8)
        for number, row in enumerate(labels):
            encoded[number, list(row)] = 1
        return encoded

    def measure(
        self, predictions: Mapping[str, Array], targets: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the metrics of each split, ``confusion`` of each label, and ``thresholds`` where there is a
        validation split to choose them on, else None."""
        measured = super().measure(predictions, targets, outputs)
        thresholds = None
        if "validation" in predictions:
            thresholds = choose_thresholds(predictions["validation"], targets["validation"])
        for split, probabilities in predictions.items():
            truth, guess = one_hot(targets[split], len(outputs)), self.decide(probabilities)
            measured[split] |= tuned_metrics(probabilities, targets[split], outputs, thresholds)
            measured[split]["confusion"] = {
                name: confusion_of(truth[:, number], guess[:, number]) for number, name in enumerate(outputs)
            }
        return measured

    def reads_validation(self, name: str) -> bool:
        return name in TUNED

    def judged(self, name: str, prediction: Array, validated: Mapping[str, Any]) -> Array:
        """Of a tuned metric, return the predictions at the thresholds of validation, as probabilities 0 or 1."""
        thresholds = thresholds_of(validated) if name in TUNED else None
        return prediction if thresholds is None else thresholds.decide(name, prediction)

    def stored_as(self, name: str) -> str:
        return MATCHED if name == "exact_match" else super().stored_as(name)

    def encode(self, array: str, prediction: Array, target: Array) -> Array:
        if array != MATCHED:
            return super().encode(array, prediction, target)
        matches = exact_matches(prediction, target)
        if matches is None:
            raise InputError("exact match is not defined where rows have different numbers of labels")
        return np.packbits(matches[:, 0].astype(bool))

    def decode(self, array: str, values: Array, target: Array, outputs: int) -> Array:
        if array != MATCHED:
            return super().decode(array, values, target, outputs)
        truth = one_hot(target, outputs)
        matched = np.unpackbits(values, count=len(truth)).astype(bool)
        return np.where(matched[:, None], truth, ~truth).astype(np.float32)


GOAL = MultiLabel(
    task="multi-label",
    metrics=(
        SHARED["macro_auroc"],
        Metric(
            "tuned_micro_f1",
            "Micro F1, tuned threshold",
            COUNTS,
            from_counts("f1", "micro"),
            words="micro F1 at a tuned threshold",
        ),
        Metric(
            "tuned_macro_f1",
            "Macro F1, tuned thresholds",
            COUNTS,
            from_counts("f1", "macro"),
            words="macro F1 at tuned thresholds",
        ),
        SHARED["loss"],
        SHARED["expected_calibration_error"],
        MICRO_F1,
        SHARED["macro_f1"],
        Metric("exact_match", "Exact match", exact_matches),
        SHARED["macro_recall"],
        SHARED["macro_precision"],
    ),
    shown=8,
    # A linear model's C hardly changes AUROC of many labels, and changes F1 a lot.
    compared_by="tuned_micro_f1",
    decide=above_threshold,
)
