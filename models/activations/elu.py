"""x above 0, alpha (exp(x) - 1) below. Source: Clevert, Unterthiner and Hochreiter, ELUs, ICLR 2016."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this activation.

    alpha: minus the limit below 0.
    """

    alpha: Annotated[float, Range(0, 100)] = 1.0


KERNEL = None


def build(channels: int, settings: Settings) -> nn.Module:
    return nn.ELU(settings.alpha)
