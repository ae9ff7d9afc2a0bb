"""The state of a run beside its tensors: completed epochs, the best epoch, and whether training should stop."""

from dataclasses import asdict, dataclass, field
from typing import Any, Self

from reread.training.settings import Settings
from reread.training.validation import Validation

COLUMNS = (
    "epoch",
    "learning_rate",
    "training_loss",
    "training_accuracy",
    "validation_loss",
    "validation_accuracy",
    "validation_score",
    "gradient_norm",
    "validation_comparable_loss",
)
# What result.json has of the best epoch.
OF_THE_BEST = ("loss", "score", "accuracy")


@dataclass
class State:
    """epoch: the last complete epoch, 0 before the first. best_epoch: highest score, ties broken by lower loss."""

    epoch: int = 0
    best_epoch: int = 0
    best: Validation | None = None
    lowest_loss: float = float("inf")
    lowest_loss_epoch: int = 0
    highest_score_epoch: int = 0
    history: list[dict[str, float]] = field(default_factory=list)

    def record(self, row: dict[str, float], validation: Validation) -> None:
        """Record a finished epoch; ``row`` has the values of ``COLUMNS``."""
        self.epoch += 1
        self.history.append(row)
        if validation.loss < self.lowest_loss:
            self.lowest_loss, self.lowest_loss_epoch = validation.loss, self.epoch
        if self.best is None or validation.score > self.best.score:
            self.highest_score_epoch = self.epoch
        if self.best is None or (validation.score, -validation.loss) > (self.best.score, -self.best.loss):
            self.best, self.best_epoch = validation, self.epoch

    def stopped(self, settings: Settings) -> str | None:
        """Return why training ends (``patience`` or ``max_epochs``), or None while it continues."""
        if self.epoch - max(self.lowest_loss_epoch, self.highest_score_epoch) >= settings.patience:
            return "patience"
        return "max_epochs" if self.epoch >= settings.max_epochs else None

    def best_validation(self) -> dict[str, float]:
        return {name: getattr(self.best, name) for name in OF_THE_BEST}

    def history_csv(self) -> str:
        """Return one line per epoch, numbers of six digits: the same text for the same run."""
        lines = [",".join(f"{row[name]:.6g}" for name in COLUMNS) for row in self.history]
        return "\n".join([",".join(COLUMNS), *lines]) + "\n"

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        return cls(**value | {"best": Validation(**value["best"])})
