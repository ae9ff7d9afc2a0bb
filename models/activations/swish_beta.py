"""x sigmoid(beta x) with a trained beta. Source: Ramachandran, Zoph and Le, arXiv 1710.05941, 2017, section 5."""

from dataclasses import dataclass
from typing import Literal

from models.activations.swish import Swish


@dataclass(frozen=True)
class Settings:
    """The settings of this activation.

    per: one beta per ``layer`` or per ``channel``, each from 1.
    """

    per: Literal["layer", "channel"] = "layer"


KERNEL = "swish"


def build(channels: int, settings: Settings) -> Swish:
    built = Swish((channels,) if settings.per == "channel" else ())
    if settings.per == "channel":
        built.kernel = None  # The fused kernels take one beta.
    return built
