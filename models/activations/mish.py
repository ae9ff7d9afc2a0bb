"""x tanh(softplus(x)). Source: Misra, Mish, BMVC 2020."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Settings:
    """Mish has no settings."""


KERNEL = None


def build(channels: int, settings: Settings) -> nn.Module:
    return nn.Mish()
