"""The moving average of the weights over the steps of training, which validation and the best checkpoint use.

Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992; exponential, and with the
decay warmed up as TensorFlow's ExponentialMovingAverage documents: min(decay, (1 + n) / (10 + n)) at step n.

torch.optim.swa_utils.AveragedModel does not serve: it copies every buffer at every step, one launch each, and counts
steps on the device, where a decay that is warmed up would have to be asked for.
"""

import copy

import torch
from torch import nn


class Average:
    """network: the one with averaged weights, or, of decay 0, the trained one itself."""

    def __init__(self, trained: nn.Module, decay: float) -> None:
        self.trained = trained
        self.decay = decay
        self.network = copy.deepcopy(trained).requires_grad_(False) if decay else trained
        self._weights = list(self.network.parameters())
        self._trained_weights = list(trained.parameters())

    def update(self, step: int) -> None:
        """Take in the weights as training step ``step`` (0, 1, ... of the whole run) has left them."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self._weights, self._trained_weights, 1 - decay)

    def take_buffers(self) -> None:
        """Copy what is counted and not learnt, such as the statistics of batch normalisation."""
        if self.decay:
            for buffer, trained in zip(self.network.buffers(), self.trained.buffers(), strict=True):
                buffer.copy_(trained)
