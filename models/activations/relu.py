"""max(x, 0). Source: Nair and Hinton, Rectified Linear Units, ICML 2010."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Settings:
    """ReLU has no settings."""


KERNEL = "relu"


def build(channels: int, settings: Settings) -> nn.Module:
    return nn.ReLU()
