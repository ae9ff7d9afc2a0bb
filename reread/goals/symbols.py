"""A symbol at each of several positions: a target is uint8 [m, P], a prediction float32 [m, P A], the probability of
each symbol at each position.

Outputs are the symbols of the first position, then those of the next, named "POSITION:SYMBOL". The predicted symbol of
a position is its most probable one, of equal ones the first. All rows have P positions.

Symbol recall is the share of positions whose predicted symbol is right; exact match the share of rows in which all are.

Shape legend: m rows, P positions, A symbols of the alphabet, K = P A outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reread.goals import Array, Goal, Metric
from reread.storage.errors import InputError

# The array of items.npz: the predicted symbols, uint8 [m, P].
SYMBOLS = "symbols"
MOST_SYMBOLS = 256


def output_names(alphabet: int, positions: int) -> tuple[str, ...]:
    """Return the names of the outputs, "POSITION:SYMBOL", positions from 1 and symbols from 0."""
    return tuple(f"{position + 1}:{symbol}" for position in range(positions) for symbol in range(alphabet))


def positions_of(outputs: Sequence[str]) -> int:
    """Return how many positions the names of outputs have."""
    return len({name.partition(":")[0] for name in outputs})


def predicted_symbols(prediction: Array, positions: int) -> Array:
    """Return the predicted symbol of each position, uint8 [m, P], of probabilities [m, P A]."""
    symbols: Array = np.asarray(prediction).reshape(len(prediction), positions, -1).argmax(axis=2).astype(np.uint8)
    return symbols


def right_symbols(prediction: Array, target: Array) -> Array:
    """Return whether the symbol of each position is right, bool [m, P]."""
    return np.equal(predicted_symbols(prediction, target.shape[1]), target)


def recalled(prediction: Array, target: Array) -> Array:
    """Return the share of each row's positions whose symbol is right, float64 [m, 1]."""
    share: Array = right_symbols(prediction, target).mean(axis=1, keepdims=True)
    return share


def matched(prediction: Array, target: Array) -> Array:
    """Return whether all symbols of each row are right, float64 [m, 1]."""
    return np.asarray(right_symbols(prediction, target).all(axis=1, keepdims=True), np.float64)


@dataclass(frozen=True, kw_only=True)
class Symbols(Goal):
    """A symbol at each of several positions."""

    def targets(self, labels: Sequence[Sequence[int]], outputs: int) -> Array:
        """Return the symbols of rows as uint8 [m, P].

        InputError where two rows have different numbers of them, and for text and images, which ask for the form of
        targets by their outputs alone.
        """
        positions = {len(row) for row in labels}
        if positions == {outputs}:
            raise InputError("text and images have no symbols by position: give rows of the kind 'symbols'")
        if len(positions) > 1:
            raise InputError(
                f"a row has {min(positions)} symbols and another {max(positions)}: give all rows as many positions"
            )
        return np.array(labels, dtype=np.uint8).reshape(len(labels), -1)

    def fault(self, labels: Sequence[Any]) -> str:
        if labels and all(type(symbol) is int and 0 <= symbol < MOST_SYMBOLS for symbol in labels):
            return ""
        return f"its symbols must be whole numbers from 0 to {MOST_SYMBOLS - 1}, one for each position"

    def description(self, targets: Array) -> dict[str, Any]:
        """Return ``positions``, by which objectives and networks divide their outputs."""
        return {"positions": targets.shape[1]}

    def columns(self, predictions: Array, outputs: Sequence[str]) -> dict[str, list[Any]]:
        """Return ``symbol`` and ``probability``: of each row a list with an entry for each position."""
        described = [self.described(row, outputs) for row in predictions]
        return {
            "symbol": [[name for name, _ in row] for row in described],
            "probability": [[probability for _, probability in row] for row in described],
        }

    def described(self, prediction: Array, outputs: Sequence[str]) -> list[tuple[str, float | None]]:
        target = predicted_symbols(prediction[None], positions_of(outputs))[0]
        by_position = prediction.reshape(len(target), -1)
        probabilities = [float(row[symbol]) for row, symbol in zip(by_position, target, strict=True)]
        return list(zip(self.named(target, outputs), probabilities, strict=True))

    def named(self, target: Any, outputs: Sequence[str]) -> list[str]:
        alphabet = len(outputs) // len(target)
        return [outputs[position * alphabet + int(symbol)] for position, symbol in enumerate(target)]

    def stored_as(self, name: str) -> str:
        return SYMBOLS

    def stored_unjudged(self) -> str:
        return SYMBOLS

    def encode(self, array: str, prediction: Array, target: Array) -> Array:
        if array != SYMBOLS:
            return super().encode(array, prediction, target)
        return predicted_symbols(prediction, target.shape[1])

    def decode(self, array: str, values: Array, target: Array, outputs: int) -> Array:
        """Return the stored symbols as probabilities 0 or 1."""
        if array != SYMBOLS:
            return super().decode(array, values, target, outputs)
        alphabet = outputs // target.shape[1]
        probabilities: Array = (values[..., None] == np.arange(alphabet)).reshape(len(values), outputs)
        return probabilities.astype(np.float32)


GOAL = Symbols(
    task="symbols",
    metrics=(
        Metric("recall", "Symbol recall", recalled),
        Metric("exact_match", "Exact match", matched),
    ),
    shown=2,
    compared_by="recall",
    objective="positions",
)
