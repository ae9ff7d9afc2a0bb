"""x times the normal distribution function of x. Source: Hendrycks and Gimpel, GELUs, arXiv 1606.08415, 2016."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import nn


@dataclass(frozen=True)
class Settings:
    """The settings of this activation.

    approximate: ``tanh`` is the source's own approximation.
    """

    approximate: Literal["none", "tanh"] = "none"


KERNEL = "gelu"


def build(channels: int, settings: Settings) -> nn.Module:
    gelu: Any = nn.GELU(settings.approximate)
    if settings.approximate != "none":
        # The kernel computes the exact one.
        gelu.kernel = None
    return gelu
