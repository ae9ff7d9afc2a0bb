"""x above 0, slope x below. Source: Maas, Hannun and Ng, Rectifier Nonlinearities, ICML 2013 workshop."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this activation.

    slope: below 0.
    """

    slope: Annotated[float, Range(0, 1)] = 0.01


KERNEL = None


def build(channels: int, settings: Settings) -> nn.Module:
    return nn.LeakyReLU(settings.slope)
