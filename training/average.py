"""The moving average of the weights over the steps of training, which validation and the best checkpoint use.

Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992. The average is exponential;
its decay is warmed up as TensorFlow's ExponentialMovingAverage documents: min(decay, (1 + n) / (10 + n)) at step n.

torch.optim.swa_utils.AveragedModel is not used: it copies every buffer at every step, one launch each. It also counts
steps on the device, and the host would wait for the count to warm up the decay.
"""

import copy

import torch
from torch import nn


class Average:
    """Moving average of a network's weights. ``network`` has them; with decay 0 it is the trained network itself."""

    def __init__(self, trained: nn.Module, decay: float) -> None:
        self.trained = trained
        self.decay = decay
        self.network = copy.deepcopy(trained).requires_grad_(False) if decay else trained
        self._weights = list(self.network.parameters())
        self._trained_weights = list(trained.parameters())

    def update(self, step: int) -> None:
        """Add the weights after training step ``step`` (0, 1, ... of the whole run) to the average."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self._weights, self._trained_weights, 1 - decay)

    def take_buffers(self) -> None:
        """Copy the buffers, such as the running statistics of batch norm, as AveragedModel does by default."""
        if self.decay:
            for buffer, trained in zip(self.network.buffers(), self.trained.buffers(), strict=True):
                buffer.copy_(trained)
