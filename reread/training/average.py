"""The moving average of the weights over the steps of training, which validation and the best checkpoint use.

Source: Polyak and Juditsky, Acceleration of Stochastic Approximation by Averaging, 1992. The average is exponential;
its decay is warmed up as TensorFlow's ExponentialMovingAverage documents: min(decay, (1 + n) / (10 + n)) at step n.

The running statistics of batch norm are estimated for the averaged weights (Izmailov et al., Averaging Weights Leads to
Wider Optima and Better Generalization, 2018, section 3.2). Those of the trained weights do not fit: with them a
DenseNet-BC-100-12 scored .918 on 1,000 validation images, and .934 with the statistics of its own.

torch.optim.swa_utils.AveragedModel is not used: it copies every buffer at every step, one launch each. It also counts
steps on the device, and the host would wait for the count to warm up the decay. Its update_bn sets momentum to None,
with which the GPU kernels do not run.
"""

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

# The statistics are estimated over so many batches, the last ones of an epoch.
BATCHES = 8


class Average:
    """Moving average of a network's weights. ``network`` has them; with decay 0 it is the trained network itself.

    batches: over how many batches ``take_buffers`` estimates statistics; 0 for a network without batch norm.
    """

    def __init__(self, trained: nn.Module, decay: float) -> None:
        self.trained = trained
        self.decay = decay
        self.network = copy.deepcopy(trained).requires_grad_(False) if decay else trained
        self._weights: list[Tensor] = list(self.network.parameters())
        self._trained_weights: list[Tensor] = list(trained.parameters())
        self._norms = [
            norm for norm in self.network.modules() if isinstance(norm, _BatchNorm) and norm.track_running_stats
        ]
        self.batches = BATCHES if decay and self._norms else 0

    def update(self, step: int) -> None:
        """Add the weights after training step ``step`` (0, 1, ... of the whole run) to the average."""
        if self.decay:
            decay = min(self.decay, (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(self._weights, self._trained_weights, 1 - decay)

    def take_buffers(self, inputs: Iterable[tuple[Tensor, ...]]) -> None:
        """Copy the buffers, and estimate the running statistics of batch norm: the mean over batches of ``inputs``."""
        if not self.decay:
            return
        for buffer, trained in zip(self.network.buffers(), self.trained.buffers(), strict=True):
            buffer.copy_(trained)
        self.network.eval()
        momenta = [norm.momentum for norm in self._norms]
        for norm in self._norms:
            norm.train()
        with torch.no_grad():
            for count, batch in enumerate(inputs, 1):
                for norm in self._norms:
                    norm.momentum = 1 / count
                self.network(*batch)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.momentum = momentum
            norm.eval()
