"""What the networks are made of: recurrence, attention, activations."""

from torch import nn

from cuda_ext import library


def parameter_count(network: nn.Module) -> int:
    """The number of trained numbers in ``network``."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def uses_kernels(network: nn.Module) -> bool:
    """Whether a layer of ``network`` calls an operation of cuda_ext/: such a layer has ``uses_kernels = True``."""
    return any(getattr(module, "uses_kernels", False) for module in network.modules())


def kernels(network: nn.Module) -> str:
    """Which implementation of the operations of cuda_ext/ that ``network`` uses runs on the device where it lies:
    ``extension KEY``, ``reference (reason)`` or, where it uses none, ``none``."""
    return library.kernels(next(network.parameters()).device) if uses_kernels(network) else "none"
