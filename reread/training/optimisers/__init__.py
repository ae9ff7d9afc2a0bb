"""The optimisers by name. An optimiser is one file, reread/training/optimisers/NAME.py, with

    Settings   a frozen dataclass of its hyper-parameters but the learning rate
    build      build(groups, learning_rate, settings) -> torch.optim.Optimizer

``groups`` are those of models/layers/parameter_groups.py, or what the network's own ``parameter_groups()`` returns. An
optimiser keeps ``lr_scale`` in its groups, from which each group's learning rate is set at every step. If it has an
attribute ``clips`` that is true, its step takes ``norm`` and ``largest_norm`` on a GPU, and clips the gradients itself.
"""

from typing import TYPE_CHECKING, Any

from reread.storage.registry import Registry

if TYPE_CHECKING:
    import torch
    from torch import nn

    from reread.training.settings import Settings

REGISTRY = Registry("reread.training.optimisers", "optimizer")


def make_optimiser(network: "nn.Module", settings: "Settings") -> "torch.optim.Optimizer":
    """Build the optimiser that the training ``settings`` name for the parameter groups of ``network``."""
    from models.layers.parameter_groups import parameter_groups  # settings are read without torch

    module, own_settings = REGISTRY.resolve(settings.optimizer)
    groups = network.parameter_groups() if hasattr(network, "parameter_groups") else parameter_groups(network)  # type: ignore[operator]
    return module.build(groups, settings.learning_rate, own_settings)


def set_learning_rate(optimiser: "torch.optim.Optimizer", learning_rate: float) -> None:
    """Set each group's learning rate for the next step: its share of ``learning_rate``."""
    for group in optimiser.param_groups:
        group["lr"] = learning_rate * group["lr_scale"]


def decaying(groups: list[dict[str, Any]], weight_decay: float) -> list[dict[str, Any]]:
    """Return the groups with ``weight_decay`` as a number: 0 where a group does not decay."""
    return [group | {"weight_decay": weight_decay if group["weight_decay"] else 0.0} for group in groups]
