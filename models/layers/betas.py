"""The betas that a network's activations have learnt, layer by layer."""

from collections.abc import Mapping

from torch import Tensor, nn


def learnt_betas(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, list[float]]:
    """Return the trained betas in ``weights`` (a state dict of ``network``) by layer, in the network's order.

    A layer has one, or one for each of its channels; a network whose activations train none has no layers here.
    """
    return {
        name: weights[f"{name}.beta"].double().flatten().tolist()
        for name, module in network.named_modules()
        if isinstance(getattr(module, "beta", None), nn.Parameter)
    }
