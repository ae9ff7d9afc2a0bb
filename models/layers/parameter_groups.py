"""Groups of a network's parameters that an optimiser treats alike."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn


def parameter_groups(
    network: nn.Module, embedding: nn.Embedding | None = None, embedding_lr_scale: float = 1.0
) -> list[dict[str, Any]]:
    """Return the trained parameters of ``network`` in groups: matrices and kernels, vectors, and the embedding.

    params: the parameters of the group. lr_scale: their share of the learning rate. weight_decay: whether they decay,
    which biases, norms, context vectors and Swish's beta do not. lookup: whether their rows are looked up, so that
    they are no linear map.
    """
    table = None if embedding is None else embedding.weight
    others = [parameter for parameter in network.parameters() if parameter.requires_grad and parameter is not table]
    groups = [
        _group([parameter for parameter in others if parameter.ndim >= 2]),
        _group([parameter for parameter in others if parameter.ndim < 2], weight_decay=False),
        _group([] if table is None else [table], lr_scale=embedding_lr_scale, lookup=True),
    ]
    return [group for group in groups if group["params"]]


def _group(
    params: Sequence[Tensor], lr_scale: float = 1.0, weight_decay: bool = True, lookup: bool = False
) -> dict[str, Any]:
    return {"params": params, "lr_scale": lr_scale, "weight_decay": weight_decay, "lookup": lookup}
