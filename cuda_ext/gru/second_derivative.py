"""The GRU has no second derivative: a derivative of its gradients is refused, where it would lack the GRU's part.

The gradients themselves are the same with this registration as without it. ``cuda_ext.gru`` imports it last: the
operation is defined then.
"""

from typing import Any

import torch
from torch import Tensor


def _refuse(ctx: Any, *gradients: Tensor) -> None:
    raise RuntimeError("gru has no second derivative: call its backward pass without create_graph=True")


torch.library.register_autograd("reread_kernels::gru_backward", _refuse)
