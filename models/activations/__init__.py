"""The activations by name. An activation is one file, models/activations/NAME.py, with

    Settings   a frozen dataclass of its settings
    KERNEL     the name under which cuda_ext/batch_norm_activation computes it, or None
    build      build(channels, settings) -> torch.nn.Module; channels: of the tensors [N, C, ...] that it is given

An activation without a kernel runs as its module, on a GPU too. A module may have its own attribute ``kernel``: None
where no kernel computes its settings.
"""

from typing import TYPE_CHECKING

from reread.storage.registry import Registry
from reread.storage.settings import Tagged

if TYPE_CHECKING:
    from torch import nn

    class Activation(nn.Module):
        """An activation as ``make_activation`` returns it, for type checkers."""

        kernel: str | None


REGISTRY = Registry("models.activations", "activation", ("Settings", "KERNEL", "build"))


def make_activation(tagged: Tagged, channels: int) -> "Activation":
    """Build the activation that ``tagged`` names; its ``kernel`` is the kernel's name or None."""
    module, settings = REGISTRY.resolve(tagged)
    built = module.build(channels, settings)
    if not hasattr(built, "kernel"):
        built.kernel = module.KERNEL
    return built
