"""A power of the share of steps that are left: at power 1 a line, at power 2 as You et al. 2017 (LARS) use it."""

from dataclasses import dataclass
from typing import Annotated

from reread.storage.settings import Range
from reread.training.schedules import share_done


@dataclass(frozen=True)
class Settings:
    """The settings of this schedule.

    warmup_epochs: epochs, or parts of one, of a linear rise to the peak; power: of the share that is left.
    """

    warmup_epochs: Annotated[float, Range(0, 1000)] = 1.0
    power: Annotated[float, Range(0, 10, exclusive=True)] = 2.0


def factor(step: int, steps_per_epoch: int, epochs: int, settings: Settings) -> float:
    return (1 - share_done(step, steps_per_epoch, epochs, settings.warmup_epochs)) ** settings.power
