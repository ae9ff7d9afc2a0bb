"""Lookahead: every few steps the trained weights are interpolated with slow weights, which then take their values.

Source: Zhang, Lucas, Hinton and Ba, Lookahead Optimizer: k steps forward, 1 step back, NeurIPS 2019; with the share
that is kept of the slow weights rising as the cube of the share of training done, and the running statistics of norms
averaged as well, as Jordan, arXiv 2404.00498, 2024, has it (its code, airbench94).
"""

import torch
from torch import nn

# Steps between two returns.
INTERVAL = 5


class Lookahead:
    """Slow weights of ``network``, which are its own after each return and at the end of each epoch."""

    def __init__(self, network: nn.Module, decay: float, steps_per_epoch: int, epochs: int) -> None:
        """decay: the share of the slow weights that a return keeps at the end of training; 0: no lookahead."""
        self.decay = decay
        self.steps_per_epoch = steps_per_epoch
        self.steps = steps_per_epoch * epochs
        tensors = [*network.parameters(), *network.buffers()] if decay else []
        self._fast = [tensor.detach() for tensor in tensors if tensor.is_floating_point()]
        self._slow = [tensor.clone() for tensor in self._fast]

    def update(self, step: int) -> None:
        """Update the slow weights after step ``step`` (0, 1, ... of the whole run), where a return is due.

        The last step of an epoch returns too, so that a checkpoint of the weights holds the slow ones.
        """
        done = step + 1
        if not self.decay or (done % INTERVAL and done % self.steps_per_epoch):
            return
        kept = self.decay * (done / self.steps) ** 3
        torch._foreach_lerp_(self._slow, self._fast, 1 - kept)
        torch._foreach_copy_(self._fast, self._slow)
