"""The peak, multiplied by ``gamma`` at each milestone, as Huang et al. 2017 (DenseNet, section 4.2) use it."""

from dataclasses import dataclass
from typing import Annotated

from reread.storage.errors import InputError
from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this schedule.

    warmup_epochs: epochs, or parts of one, of a linear rise to the peak; milestones: rising shares of all epochs;
    gamma: the factor at each.
    """

    warmup_epochs: Annotated[float, Range(0, 1000)] = 0.0
    milestones: tuple[Annotated[float, Range(0, 1)], ...] = (0.5, 0.75)
    gamma: Annotated[float, Range(0, 1)] = 0.1

    def __post_init__(self) -> None:
        if list(self.milestones) != sorted(set(self.milestones)):
            raise InputError(f"milestones are {list(self.milestones)}: give rising shares of all epochs")


def factor(step: int, steps_per_epoch: int, epochs: int, settings: Settings) -> float:
    passed = sum(step >= round(milestone * epochs * steps_per_epoch) for milestone in settings.milestones)
    return settings.gamma**passed
