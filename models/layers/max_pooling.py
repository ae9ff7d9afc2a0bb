"""Maximum pooling in steps of 2: on a GPU by cuda_ext/max_pool2d, whose gradient has the same bits in every run.

Shape legend: N images, C channels, H x W pixels.
"""

from torch import Tensor, nn
from torch.nn import functional

from cuda_ext import max_pool2d as kernel
from models.layers.fusing import has_kernel


class MaxPool2d(nn.Module):
    """The maximum of each window of 2 x 2 or, with a padding of 1, 3 x 3 pixels."""

    uses_kernels = True

    def __init__(self, window: int) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        return max_pool2d(x, self.window)


def max_pool2d(x: Tensor, window: int = 2) -> Tensor:
    """x float [N, C, H, W] -> [N, C, H // 2, W // 2], as ``F.max_pool2d(x, 2)``, or with a window of 3
    [N, C, (H + 1) // 2, (W + 1) // 2], as ``F.max_pool2d(x, 3, stride=2, padding=1)``."""
    if has_kernel("max_pool2d", x):
        return kernel.max_pool2d(x, window)
    return functional.max_pool2d(x, window, stride=2, padding=window - 2)
