"""Half a cosine from the peak to zero. Source: Loshchilov and Hutter, SGDR, ICLR 2017, equation 5, without restarts."""

import math
from dataclasses import dataclass
from typing import Annotated

from reread.storage.settings import Range
from reread.training.schedules import share_done


@dataclass(frozen=True)
class Settings:
    """The settings of this schedule.

    warmup_epochs: epochs, or parts of one, of a linear rise to the peak.
    """

    warmup_epochs: Annotated[float, Range(0, 1000)] = 1.0


def factor(step: int, steps_per_epoch: int, epochs: int, settings: Settings) -> float:
    return 0.5 * (1 + math.cos(math.pi * share_done(step, steps_per_epoch, epochs, settings.warmup_epochs)))
