"""What the networks are made of: recurrence, attention, activations."""

from torch import nn


def parameter_count(network: nn.Module) -> int:
    """The number of trained numbers in ``network``."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def kernels(network: nn.Module) -> str:
    """Which implementation runs where ``network`` has an operation of cuda_ext/ (``reference``); ``none`` without one.

    A layer that calls such an operation says which by a method ``kernels``.
    """
    found = {module.kernels() for module in network.modules() if hasattr(module, "kernels")}
    return ", ".join(sorted(found)) or "none"
