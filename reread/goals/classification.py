"""The parts that goals of classes share: their metrics, and how predictions are kept beside results.

A comparison's metric is one of the whole split, or recall, precision, f1 or auroc of one class: "recall:CLASS".

Shape legend: m rows, K classes, B calibration bins, R resamples. A prediction is the probabilities, float32 [m, K].

Expected calibration error: Guo, Pleiss, Sun, Weinberger 2017, "On Calibration of Modern Neural Networks",
section 2, with 15 bins of equal width ((b-1)/B, b/B]. The rest is defined as in scikit-learn.

A class without a single row in the split has no recall, precision, F1 and AUROC: macro means are taken over the
classes that are present, and ``absent_classes`` names the others. A precision without a prediction is 0.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import PREDICTIONS, Array, Goal, Metric, Resampled

CALIBRATION_BINS = 15
# A label is predicted where its probability is at least this.
THRESHOLD = 0.5
OF_A_CLASS = {"recall": "Recall", "precision": "Precision", "f1": "F1", "auroc": "AUROC"}
# Arrays of items.npz that are smaller than probabilities.
PREDICTED, MATCHED, RANKS = "predicted", "matched", "ranks"

# Probabilities float32 [m, K] -> the predicted classes, bool [m, K].
Decide = Callable[[Array], Array]


def one_hot(labels: Array, classes: int) -> Array:
    """Labels int [m] or uint8 [m, K] as bool [m, K]."""
    labels = np.asarray(labels)
    encoded: Array = labels.astype(bool) if labels.ndim == 2 else labels[:, None] == np.arange(classes)
    return encoded


def most_probable(probabilities: Array) -> Array:
    """Return each row's most probable class, bool [m, K]; of equal ones the first."""
    return one_hot(probabilities.argmax(axis=1), probabilities.shape[1])


def above_threshold(probabilities: Array) -> Array:
    """Return the classes whose probability is at least THRESHOLD, bool [m, K]."""
    chosen: Array = probabilities >= THRESHOLD
    return chosen


def row_losses(probabilities: Array, labels: Array) -> Array:
    """Log loss of each row in nats, float64 [m]: cross-entropy of one label, or the mean binary one of K labels.

    Probabilities are float32, so that one of 0 (or 1) means only that it was too small (or near) to be represented:
    it is taken as the last number before it.
    """
    labels = np.asarray(labels)
    information = np.finfo(np.float32)
    losses: Array
    if labels.ndim == 1:
        chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        losses = -np.log(np.maximum(chosen, float(information.tiny)))
        return losses
    half = float(information.eps) / 2
    clipped = np.clip(probabilities.astype(np.float64), half, 1 - half)
    losses = -np.where(labels.astype(bool), np.log(clipped), np.log1p(-clipped)).mean(axis=1)
    return losses


def confidence_and_outcome(probabilities: Array, labels: Array) -> tuple[Array, Array]:
    """Return what calibration compares, float64 [m] or [m K] each: the probability, and the outcome (0 or 1).

    One label: the highest probability of a row. Several labels: each row's probability of each label.
    """
    if np.asarray(labels).ndim == 1:
        guess = probabilities.argmax(axis=1)
        confidence = probabilities[np.arange(len(guess)), guess]
        return confidence.astype(np.float64), (guess == labels).astype(np.float64)
    return probabilities.astype(np.float64).ravel(), np.asarray(labels, dtype=np.float64).ravel()


def calibration_bin(confidence: Array, bins: int = CALIBRATION_BINS) -> Array:
    """The bin ((b-1)/B, b/B] of each confidence, int; 0 itself belongs to the first."""
    numbers: Array = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    return numbers


def calibration_table(probabilities: Array, labels: Array, bins: int = CALIBRATION_BINS) -> list[dict[str, Any]]:
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


def calibration_distances(probabilities: Array, labels: Array) -> Array:
    """Return what each row adds to the distance of confidence and outcome in each bin, float64 [m, B]."""
    confidence, outcome = confidence_and_outcome(probabilities, labels)
    per_row = len(confidence) // len(labels)
    distance = np.zeros((len(labels), CALIBRATION_BINS))
    np.add.at(distance, (np.repeat(np.arange(len(labels)), per_row), calibration_bin(confidence)), outcome - confidence)
    return distance / per_row


def calibration_error(sums: Array, items: Any) -> Array:
    """Return the mean distance of confidence and outcome, weighted by the share of each bin."""
    error: Array = np.abs(sums).sum(axis=-1) / items
    return error


def class_scores(measure: str, hits: Array, guesses: Array, truths: Array) -> Array:
    """Return recall, precision or F1 of each class, float64 [..., K], from counts: true, predicted, and both (hits)."""
    numerator, denominator = {
        "recall": (hits, truths),
        "precision": (hits, guesses),
        "f1": (2 * hits, guesses + truths),
    }[measure]
    scores: Array = np.divide(numerator, denominator, out=np.zeros(np.shape(hits)), where=denominator > 0)
    return scores


def confusion_counts(decide: Decide, needed: int | None = None) -> Callable[[Array, Array], Array | None]:
    """Return the statistics of recall, precision and F1, float64 [m, 3 K]: hits, predictions and labels of each class.

    They are not defined where no row has a label; needed: or where none has class ``needed``.
    """

    def statistics(probabilities: Array, labels: Array) -> Array | None:
        truth = one_hot(labels, probabilities.shape[1])
        if not (truth if needed is None else truth[:, needed]).any():
            return None
        guess = decide(probabilities)
        return np.concatenate([guess & truth, guess, truth], axis=1).astype(np.float64)

    return statistics


def from_counts(measure: str, average: str | int) -> Callable[[Array, Any], Array]:
    """Return recall, precision or F1 of the sums of ``confusion_counts``.

    average: "macro" (mean over the classes that are present), "micro", or the number of one class.
    """

    def reduce(sums: Array, items: Any) -> Array:
        hits, guesses, truths = np.split(sums, 3, axis=-1)
        if average == "micro":
            return class_scores(measure, *(counts.sum(axis=-1) for counts in (hits, guesses, truths)))
        scores = class_scores(measure, hits, guesses, truths)
        if isinstance(average, int):
            return scores[..., average]
        present = truths > 0
        result: Array = (scores * present).sum(axis=-1) / np.maximum(present.sum(axis=-1), 1)
        return result

    return reduce


# What ``rank_pairs`` returns.
Ranks = tuple[Array, Array, Array, Array]


def rank_pairs(scores: Array, positive: Array) -> Ranks:
    """Rank the positives of a class among its negatives: scores float [m], positive bool [m].

    Returns the rows of the negatives and of the positives in order of their scores, and for each positive the number of
    negatives with a lower score, and with a score that is not higher.
    """
    order = np.argsort(scores, kind="stable")
    negatives, positives = order[~positive[order]], order[positive[order]]
    lower = np.searchsorted(scores[negatives], scores[positives], side="left")
    not_higher = np.searchsorted(scores[negatives], scores[positives], side="right")
    return negatives, positives, lower, not_higher


def auroc(scores: Array, positive: Array) -> float | None:
    """Return the area under the ROC curve, ties counted one half; None where only one outcome occurs."""
    negatives, positives, lower, not_higher = rank_pairs(scores, positive)
    if not len(negatives) or not len(positives):
        return None
    return float((lower + not_higher).sum() / (2 * len(negatives) * len(positives)))


def won_pairs(ranks: Ranks, by_item: Array) -> tuple[Array, Array]:
    """Return of each resample how many pairs of a positive and a negative are in order, ties one half, and all pairs.

    by_item: the counts of items, float64 [m, R]. Float64 [R] each; AUROC is their quotient.
    """
    negatives, positives, below, not_above = ranks
    passed = np.zeros((len(negatives) + 1, by_item.shape[1]))  # number of negatives before each rank
    np.cumsum(by_item[negatives], axis=0, out=passed[1:])
    drawn = by_item[positives]
    won = np.einsum("ir,ir->r", drawn, passed[below] + passed[not_above]) / 2
    return won, drawn.sum(axis=0) * passed[-1]


@dataclass(frozen=True)
class Auroc(Metric):
    """The mean area under the ROC curve over the classes that have both outcomes, or that of class ``number``.

    It depends on pairs of items, so it is no function of a sum over them.
    """

    number: int | None = None

    def _classes(self, probabilities: Array, labels: Array) -> Iterable[tuple[Array, Array]]:
        truth = one_hot(labels, probabilities.shape[1])
        chosen = slice(None) if self.number is None else [self.number]
        return zip(probabilities.T[chosen], truth.T[chosen], strict=True)

    def value(self, prediction: Array, target: Array) -> float | None:
        return mean_or_none(auroc(scores, positive) for scores, positive in self._classes(prediction, target))

    def resampled(self, predictions: Iterable[Array], target: Array) -> Resampled:
        by_seed = [
            [rank_pairs(scores, positive) for scores, positive in self._classes(prediction, target)]
            for prediction in predictions
        ]

        def of_counts(counts: Array) -> Array:
            by_item = np.ascontiguousarray(counts.T)  # [m, R]: the counts of one item are contiguous
            total, known = np.zeros((2, len(counts), len(by_seed)))
            for seed, classes in enumerate(by_seed):
                for ranks in classes:
                    won, pairs = won_pairs(ranks, by_item)
                    total[:, seed] += np.divide(won, pairs, out=np.zeros_like(won), where=pairs > 0)
                    known[:, seed] += pairs > 0
            result: Array = np.divide(total, known, out=np.zeros_like(total), where=known > 0)
            return result

        return of_counts


def no_statistics(prediction: Array, target: Array) -> None:
    """AUROC has none."""


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are defined; None where none is."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def shared_metrics(decide: Decide) -> dict[str, Metric]:
    """Return the metrics of the whole split that one label and several have, by name."""
    counts = confusion_counts(decide)
    metrics = (
        Auroc("macro_auroc", "Macro AUROC", no_statistics),
        Metric("macro_f1", "Macro F1", counts, from_counts("f1", "macro")),
        Metric("macro_recall", "Macro recall", counts, from_counts("recall", "macro")),
        Metric("macro_precision", "Macro precision", counts, from_counts("precision", "macro")),
        Metric(
            "loss",
            "Log loss",
            lambda probabilities, labels: row_losses(probabilities, labels)[:, None],
            higher_is_better=False,
            bounds=(0.0, np.inf),
        ),
        Metric(
            "expected_calibration_error",
            "Calibration error",
            calibration_distances,
            calibration_error,
            higher_is_better=False,
        ),
    )
    return {metric.name: metric for metric in metrics}


@dataclass(frozen=True, kw_only=True)
class Classification(Goal):
    """A goal whose outputs are classes. decide: which classes a row's probabilities predict."""

    decide: Decide

    def output_titles(self) -> Mapping[str, str]:
        return OF_A_CLASS

    def metric_of_output(self, measure: str, number: int) -> Metric:
        title = OF_A_CLASS[measure]
        if measure == "auroc":
            return Auroc(measure, title, no_statistics, number=number)
        return Metric(measure, title, confusion_counts(self.decide, number), from_counts(measure, number))

    def measure(
        self, predictions: Mapping[str, Array], targets: Mapping[str, Array], outputs: Sequence[str]
    ) -> dict[str, dict[str, Any]]:
        """Return the metrics of each split: those of ``metrics``, ``calibration``, ``absent_classes``, and recall,
        precision, F1 and AUROC of each class."""
        measured = super().measure(predictions, targets, outputs)
        for split, probabilities in predictions.items():
            labels = np.asarray(targets[split])
            truth, guess = one_hot(labels, len(outputs)), self.decide(probabilities)
            present = np.asarray(truth.any(axis=0))
            counts = [(guess & truth).sum(axis=0), guess.sum(axis=0), truth.sum(axis=0)]
            areas = (auroc(probabilities[:, number], truth[:, number]) for number in range(len(outputs)))
            measured[split] |= {
                "calibration": calibration_table(probabilities, labels),
                "absent_classes": [name for name, there in zip(outputs, present, strict=True) if not there],
                "auroc": dict(zip(outputs, areas, strict=True)),
                **{
                    measure: by_class(class_scores(measure, *counts), present, outputs)
                    for measure in OF_A_CLASS
                    if measure != "auroc"
                },
            }
        return measured

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return label, probability and probabilities: what ``described`` has of each row, and each class by name."""
        described = [self.described(row, outputs) for row in predictions]
        return {
            "label": [[name for name, _ in row] for row in described],
            "probability": [[probability for _, probability in row] for row in described],
            "probabilities": [dict(zip(outputs, row.tolist(), strict=True)) for row in predictions],
        }

    def described(self, prediction: Array, outputs: Sequence[str]) -> list[tuple[str, float | None]]:
        chosen = np.flatnonzero(self.decide(prediction[None])[0]).tolist()
        return [(outputs[number], float(prediction[number])) for number in chosen]

    def named(self, target: Any, outputs: Sequence[str]) -> list[str]:
        chosen = np.flatnonzero(one_hot(np.asarray(target)[None], len(outputs))[0]).tolist()
        return [outputs[number] for number in chosen]

    def stored_as(self, name: str) -> str:
        return RANKS if name.partition(":")[0].endswith("auroc") else PREDICTIONS

    def encode(self, array: str, prediction: Array, target: Array) -> Array:
        if array == RANKS:
            ranks = [np.unique(column, return_inverse=True)[1] for column in prediction.T]
            return smallest(np.stack(ranks, axis=1), 2)
        return super().encode(array, prediction, target)

    def decode(self, array: str, values: Array, target: Array, outputs: int) -> Array:
        # float32 has 24 bits: the ranks of up to 16 million rows stay apart.
        return (values / 2**24).astype(np.float32) if array == RANKS else values


def by_class(scores: Array, present: Array, outputs: Sequence[str]) -> dict[str, float | None]:
    """Return the score of each class by its name; None of one that no row has."""
    return {name: float(score) if there else None for name, score, there in zip(outputs, scores, present, strict=True)}


def smallest(numbers: Array, least: int = 1) -> Array:
    """Return whole numbers from 0 in the smallest unsigned type that holds them, of at least ``least`` bytes."""
    return numbers.astype(np.promote_types(np.min_scalar_type(int(numbers.max(initial=0))), f"u{least}"))
