"""The parts of the networks: recurrence, attention, pooling, residual units."""

from torch import nn

from cuda_ext import library


def parameter_count(network: nn.Module) -> int:
    """Return the number of trained parameters of ``network``."""
    return sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)


def uses_kernels(network: nn.Module) -> bool:
    """Return whether a layer of ``network`` calls an operation of cuda_ext/, by its ``uses_kernels``."""
    return any(getattr(module, "uses_kernels", False) for module in network.modules())


def kernels(network: nn.Module) -> str:
    """Return which implementation of the operations of cuda_ext/ ``network`` uses on its device:
    ``extension KEY``, ``reference (reason)`` or, where it uses none, ``none``."""
    return library.kernels(next(network.parameters()).device) if uses_kernels(network) else "none"
