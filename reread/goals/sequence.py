"""A sequence of tokens per row, such as the words of a translation or of what was said.

A target is float32 [m, L]: the numbers of its tokens, then END. A prediction is of the same form, and may have another
L. Targets of a data set have its longest L, and an output for each place.

BLEU is that of a corpus (Papineni et al. 2002) from 0 to 100, with one reference and the smoothing of sacreBLEU (Post
2018; Chen and Cherry 2014, method 3): counts of n-grams are added over all rows first. The word error rate is
Levenshtein's distance over the tokens of the references, above 1 where more is inserted than is there.

Shape legend: m rows, L tokens of the longest row, n from 1 to 4 for n-grams.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import Array, Goal, Metric

END = -1
LONGEST_NGRAM = 4
# Token numbers are exact as float32.
MOST_TOKENS = 1 << 24


def rows_of(tokens: Array) -> list[list[int]]:
    """Return the tokens of each row, those before its first END."""
    ended = np.concatenate([np.asarray(tokens) == END, np.ones((len(tokens), 1), bool)], axis=1).argmax(axis=1)
    return [row[:length] for row, length in zip(np.asarray(tokens).astype(int).tolist(), ended.tolist(), strict=True)]


def ngrams(row: Sequence[int], n: int) -> Counter[tuple[int, ...]]:
    """Return how often each n-gram stands in a row."""
    return Counter(zip(*(row[start:] for start in range(n)), strict=False))


def bleu_counts(prediction: Array, target: Array) -> Array:
    """Return the tokens of each prediction and of its target, its n-grams that the target has, and all its n-grams,
    float64 [m, 2 + 4 + 4]."""
    counts = np.zeros((len(target), 2 + 2 * LONGEST_NGRAM))
    for row, (tokens, reference) in enumerate(zip(rows_of(prediction), rows_of(target), strict=True)):
        counts[row, :2] = len(tokens), len(reference)
        for n in range(1, LONGEST_NGRAM + 1):
            own = ngrams(tokens, n)
            counts[row, 1 + n] = (own & ngrams(reference, n)).total()
            counts[row, 1 + LONGEST_NGRAM + n] = own.total()
    return counts


def bleu(sums: Array, items: Any) -> Array:
    """Return BLEU of sums of ``bleu_counts`` [..., 10]; 0 where no n-gram of some length is predicted."""
    sums = np.asarray(sums, np.float64)
    length, reference = sums[..., 0], sums[..., 1]
    matches, totals = sums[..., 2 : 2 + LONGEST_NGRAM], sums[..., 2 + LONGEST_NGRAM :]
    # The k-th length of n-grams without a match counts as 1 / 2^k matches.
    smoothed = np.where(matches > 0, matches, 0.5 ** np.cumsum(matches == 0, axis=-1))
    is_positive = (totals > 0).all(axis=-1) & (matches > 0).any(axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.log(smoothed / totals).mean(axis=-1)
        brevity = np.minimum(0.0, 1 - reference / length)
        score: Array = np.where(is_positive, 100 * np.exp(precision + brevity), 0.0)
    return score


def edits(prediction: Array, target: Array) -> Array:
    """Return the substitutions, deletions and insertions of each row, and the tokens of its target, float64 [m, 2]."""
    ours, theirs = rows_of(prediction), rows_of(target)
    lengths, references = (np.array([len(row) for row in rows], int) for rows in (ours, theirs))
    every, padded, longest = np.arange(len(target)), np.asarray(prediction), int(references.max(initial=0))
    # distances[i, k]: of the first tokens of prediction i from the first k tokens of its target.
    distances = np.tile(np.arange(longest + 1), (len(target), 1))
    result = distances[every, references].astype(np.float64)
    for place in range(int(lengths.max(initial=0))):
        before, distances = distances, np.empty_like(distances)
        distances[:, 0] = place + 1
        for k in range(longest):
            replaced = before[:, k] + (padded[:, place] != np.asarray(target)[:, k])
            distances[:, k + 1] = np.minimum(replaced, np.minimum(before[:, k + 1], distances[:, k]) + 1)
        ends = lengths == place + 1
        result[ends] = distances[every, references][ends]
    return np.stack([result, references], axis=1)


def ratio(sums: Array, items: Any) -> Array:
    """Return the first sum over the second; NaN where that is 0."""
    undefined = np.full(np.shape(sums)[:-1], np.nan)
    result: Array = np.divide(sums[..., 0], sums[..., 1], out=undefined, where=sums[..., 1] > 0)
    return result


def exponential_ratio(sums: Array, items: Any) -> Array:
    """Return the exponential of ``ratio``."""
    result: Array = np.exp(ratio(sums, items))
    return result


def unknown(prediction: Array, target: Array) -> None:
    """Return None: tokens have no likelihood."""


@dataclass(frozen=True, kw_only=True)
class Sequences(Goal):
    """A sequence of tokens per row."""

    def targets(self, labels: Sequence[Sequence[float]], outputs: int) -> Array:
        """Return the tokens of rows as float32 [m, L], with END after them."""
        tokens = np.full((len(labels), outputs), END, np.float32)
        for row, numbers in enumerate(labels):
            tokens[row, : len(numbers)] = numbers
        return tokens

    def fault(self, labels: Sequence[Any]) -> str:
        rest = [number for number in labels if number != END]
        if list(labels[: len(rest)]) != rest:
            return f"a token stands after {END}, the end"
        if all(number == int(number) and 0 <= number < MOST_TOKENS for number in rest):
            return ""
        return f"tokens are whole numbers from 0 to {MOST_TOKENS - 1}"

    def from_texts(self, predictions: Sequence[str], references: Sequence[str]) -> tuple[Array, Array]:
        """Return texts, whose tokens are separated by spaces, as predictions and targets [m, L]."""
        numbers: dict[str, int] = {}
        rows = [
            [[numbers.setdefault(token, len(numbers)) for token in text.split()] for text in texts]
            for texts in (predictions, references)
        ]
        longest = max((len(row) for texts in rows for row in texts), default=0)
        predicted, target = (self.targets(texts, longest) for texts in rows)
        return predicted, target

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return ``tokens``, the numbers of each row's tokens."""
        return {"tokens": rows_of(predictions)}

    def described(self, prediction: Array, outputs: Sequence[str]) -> list[tuple[str, float | None]]:
        return [(" ".join(self.named(prediction, outputs)), None)]

    def named(self, target: Any, outputs: Sequence[str]) -> list[str]:
        return [str(token) for token in rows_of(np.asarray(target)[None])[0]]

    def stored_unjudged(self) -> str:
        return self.stored_as(self.names[0])


GOAL = Sequences(
    task="sequence",
    metrics=(
        Metric("bleu", "BLEU", bleu_counts, bleu, bounds=(0.0, 100.0)),
        Metric("word_error_rate", "Word error rate", edits, ratio, higher_is_better=False, bounds=(0.0, np.inf)),
    ),
    # The negative logarithm of a row's likelihood, and its tokens.
    given=(
        Metric("perplexity", "Perplexity", unknown, exponential_ratio, higher_is_better=False, bounds=(1.0, np.inf)),
    ),
    shown=2,
    compared_by="word_error_rate",
)
