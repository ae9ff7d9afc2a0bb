"""The peak rate until the end."""

from dataclasses import dataclass
from typing import Annotated

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this schedule.

    warmup_epochs: epochs, or parts of one, of a linear rise to the peak.
    """

    warmup_epochs: Annotated[float, Range(0, 1000)] = 1.0


def factor(step: int, steps_per_epoch: int, epochs: int, settings: Settings) -> float:
    return 1.0
