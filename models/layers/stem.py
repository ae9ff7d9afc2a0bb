"""The 7x7 convolution of stride 2 that networks for photographs begin with, fast in half precision on a GPU.

A grey or colour image has too few channels to fill the matrix units. There the pixels of each 2x2 square become
channels (space-to-depth), and the filters, extended to 8x8 by a row and a column of zeros in front, become 4x4. The
sums are the same, of the same products and some zeros:

    y[i, j] = sum over p, q in 0..3 and a, b in 0..1 of w[2p + a, 2q + b] x[2(i + p - 2) + a, 2(j + q - 2) + b]

Source: Google's submission to MLPerf Training 0.7, whose ResNet-50 has it as ``conv0_space_to_depth``
(https://github.com/mlcommons/training_results_v0.7).

Shape legend: N images, C channels, H x W pixels, K filters.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

HALF = (torch.bfloat16, torch.float16)
# RGB and one more: squares of 2x2 then have 16 channels at most.
MOST_CHANNELS = 4
# Numbers of half precision in 16 bytes: images whose channels are no multiple of it cuDNN copies first, to fill them.
PACK = 8


class Stem(nn.Conv2d):
    """A 7x7 convolution of stride 2 without bias: x [N, C, H, W] -> [N, K, (H + 1) // 2, (W + 1) // 2].

    On a GPU in half precision, by its weights or by autocast, images of 1 to 4 channels and even sides are
    rearranged, and the result is channels-last. Everything else goes to PyTorch's convolution.
    """

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__(channels, filters, 7, stride=2, padding=3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        dtype = _dtype_of_convolution(x)
        if (
            x.is_cuda
            and dtype in HALF
            and dtype == _dtype_of_convolution(self.weight)
            and x.ndim == 4
            and x.shape[1] == self.in_channels <= MOST_CHANNELS
            and x.shape[2] % 2 == x.shape[3] % 2 == 0
        ):
            return rearranged_convolution(x, self.weight, dtype)
        return super().forward(x)


def rearranged_convolution(x: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """``F.conv2d(x, weight, stride=2, padding=3)`` in ``dtype``, by 4x4 filters over squares of 2x2 pixels.

    x [N, C, H, W] with even H and W, weight [K, C, 7, 7] -> [N, K, H / 2, W / 2], channels-last.
    """
    filters = _squares_as_channels(functional.pad(weight, (1, 0, 1, 0)), dtype)
    return functional.conv2d(_squares_as_channels(x, dtype, before=2, after=1), filters)


def _squares_as_channels(x: Tensor, dtype: torch.dtype, before: int = 0, after: int = 0) -> Tensor:
    """Return x [N, C, 2h, 2w] as ``dtype`` [N, 4C, h, w], channels-last, with zeros around it.

    Channels are filled to a multiple of PACK, both sides to before + h + after and before + w + after. One copy casts
    and rearranges: of a channels-last x it reads and writes the 2C numbers of a row of a square side by side.
    """
    number, channels, height, width = x.shape
    height, width = height // 2, width // 2
    outer = (before + height + after, before + width + after)
    filled = x.new_zeros((number, *outer, -(-4 * channels // PACK) * PACK), dtype=dtype)
    inner = filled[:, before : before + height, before : before + width, : 4 * channels]
    squares = x.unflatten(3, (width, 2)).unflatten(2, (height, 2))
    inner.unflatten(3, (2, 2, channels)).copy_(squares.permute(0, 2, 4, 3, 5, 1))
    return filled.permute(0, 3, 1, 2)


def _dtype_of_convolution(x: Tensor) -> torch.dtype:
    """Return the dtype in which a convolution computes with ``x``: autocast's, which leaves float64, or its own."""
    device = x.device.type
    casts = torch.is_autocast_enabled(device) and x.dtype != torch.float64
    return torch.get_autocast_dtype(device) if casts else x.dtype
