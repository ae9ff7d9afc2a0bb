"""One cycle: a line up to the peak, and a line down to far below the start.

Source: Smith and Topin, Super-Convergence, arXiv 1708.07120, 2017; both lines as torch.optim.lr_scheduler.OneCycleLR
with anneal_strategy="linear" has them.
"""

from dataclasses import dataclass
from typing import Annotated

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this schedule.

    rise: share of all steps up to the peak; start, end: the first and the last step's shares of the peak.
    """

    rise: Annotated[float, Range(0.001, 0.999)] = 0.3
    start: Annotated[float, Range(0, 1)] = 0.04
    end: Annotated[float, Range(0, 1)] = 4e-6


def factor(step: int, steps_per_epoch: int, epochs: int, settings: Settings) -> float:
    last = epochs * steps_per_epoch - 1
    peak = min(max(settings.rise * (last + 1) - 1, 0.0), last)
    if step <= peak:
        return 1.0 if peak == 0 else settings.start + (1 - settings.start) * step / peak
    return 1 + (settings.end - 1) * (step - peak) / (last - peak)
