"""log(1 + exp(beta x)) / beta. Source: Dugas et al., Incorporating Second-Order Functional Knowledge, NIPS 2000."""

from dataclasses import dataclass
from typing import Annotated

from torch import nn

from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this activation.

    beta: how sharp the bend is.
    """

    beta: Annotated[float, Range(0, 100, exclusive=True)] = 1.0


KERNEL = None


def build(channels: int, settings: Settings) -> nn.Module:
    return nn.Softplus(settings.beta)
