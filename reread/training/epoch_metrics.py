"""Losses, right answers and gradient norms of an epoch's steps, kept on the device until they are read."""

import math

import numpy as np
import torch

from reread.storage.errors import InputError
from reread.training.progress import Progress
from reread.training.step import StepOutput


class EpochMetrics:
    """Sums over the steps of an epoch. The host waits for a GPU at the intervals of ``progress`` and at the end."""

    def __init__(self, epoch: int, steps: int, learning_rate: float, progress: Progress) -> None:
        """steps: of the epoch; learning_rate: as set, for the message where a loss is not finite."""
        self.epoch = epoch
        self.steps = steps
        self.learning_rate = learning_rate
        self.progress = progress
        self.rows = 0
        self.loss = self.correct = 0.0
        self.norms: list[float] = []
        self._unread: list[tuple[int, StepOutput]] = []

    def add(self, rows: int, outcome: StepOutput) -> None:
        """Add the outcome of a step on ``rows`` rows of all processes together; InputError as ``read``."""
        self._unread.append((rows, outcome))
        if self.progress.step(rows):
            self.progress.show(self.epoch, len(self.norms) + len(self._unread), self.steps, self.read())

    def read(self) -> float:
        """Wait for the steps so far, add them up and return the last loss; InputError where one is not finite."""
        unread, self._unread = self._unread, []
        names = ("loss", "correct", "norm")
        values = (torch.stack([getattr(outcome, name) for _, outcome in unread]).tolist() for name in names)
        for (rows, _), loss, correct, norm in zip(unread, *values, strict=True):
            self.norms.append(norm)
            refuse_non_finite(loss, f"training loss at epoch {self.epoch}, step {len(self.norms)}", self.learning_rate)
            self.rows += rows
            self.loss += loss * rows
            self.correct += correct * rows
        return loss

    def row(self) -> dict[str, float]:
        """Return the means of the epoch by the columns of history.csv, once every step is read."""
        if self._unread:
            self.read()
        return {
            "training_loss": self.loss / self.rows,
            "training_accuracy": self.correct / self.rows,
            # The scaler skips a step whose half-precision gradient overflowed, and so does the mean.
            "gradient_norm": float(np.mean([norm for norm in self.norms if math.isfinite(norm)] or [0.0])),
        }


def refuse_non_finite(loss: float, where: str, learning_rate: float) -> None:
    if not math.isfinite(loss):
        raise InputError(f"{where} is {loss}: lower learning_rate ({learning_rate:g}) or max_grad_norm, then run again")
