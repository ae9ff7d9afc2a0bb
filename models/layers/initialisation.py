"""Initialisation of a network from its training data, before the first step."""

from typing import Any

from torch import nn

from reread.storage.prepared import Prepared


def init_from_data(network: nn.Module, prepared: Prepared) -> None:
    """Call ``init_from_data(prepared)`` of each layer that has it: word vectors, a whitening.

    InputError where data is missing. A layer may read only the training split.
    """
    layer: Any
    for layer in network.modules():
        if hasattr(layer, "init_from_data"):
            layer.init_from_data(prepared)
