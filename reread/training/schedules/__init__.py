"""The schedules of the learning rate by name. A schedule is one file, reread/training/schedules/NAME.py, with

Settings   a frozen dataclass; its ``warmup_epochs``, if it has one, are a linear rise to the peak
factor     factor(step, steps_per_epoch, epochs, settings) -> share of the learning rate at step 0, 1, ... of the run
"""

from collections.abc import Mapping
from typing import Any

from reread.storage.registry import Registry

REGISTRY = Registry("reread.training.schedules", "schedule", requires=("Settings", "factor"))


class Schedule:
    """The learning rate of each step of a run of ``epochs`` epochs; the peak comes right after the warm-up."""

    def __init__(self, tagged: Mapping[str, Any], learning_rate: float, epochs: int) -> None:
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.module, self.settings = REGISTRY.resolve(tagged)

    @property
    def warmup_epochs(self) -> float:
        return getattr(self.settings, "warmup_epochs", 0.0)

    def __call__(self, step: int, steps_per_epoch: int) -> float:
        """Return the learning rate of step 0, 1, ... of the whole run."""
        warmup = warmup_steps(steps_per_epoch, self.warmup_epochs)
        if step < warmup:
            return self.learning_rate * (step + 1) / (warmup + 1)
        return self.learning_rate * self.module.factor(step, steps_per_epoch, self.epochs, self.settings)


def warmup_steps(steps_per_epoch: int, warmup_epochs: float) -> int:
    return round(warmup_epochs * steps_per_epoch)


def share_done(step: int, steps_per_epoch: int, epochs: int, warmup_epochs: float) -> float:
    """Return the share of the steps after the warm-up that come before ``step``, from 0 up to below 1."""
    warmup = warmup_steps(steps_per_epoch, warmup_epochs)
    return (step - warmup) / (epochs * steps_per_epoch - warmup)
