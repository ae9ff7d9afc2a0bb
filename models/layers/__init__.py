"""What the networks are made of: recurrence, attention, activations."""

from torch import nn


def parameter_count(module: nn.Module) -> int:
    """The number of trained numbers in ``module``."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
