"""A first convolution that whitens the patches of the training images and is frozen.

Source: Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, arXiv 2404.00498, 2024, section 3.2: the filters are
the eigenvectors of the patches' second moments, each divided by the root of its eigenvalue, and their negatives.

Shape legend: n images, C channels, H x W pixels, D = 4 C numbers of a 2x2 patch.
"""

from typing import Any

import torch
from torch import Tensor, nn

from cuda_ext.patch_convolution import CHANNELS, patch_convolution
from models.layers.fusing import has_kernel
from models.layers.norm_activation import kernel_of, trained_beta
from reread.storage.prepared import Prepared

SIDE = 2
# Added to the eigenvalues: what hardly varies is not raised to the level of the rest.
EPSILON = 5e-4
# Rows of the training split, evenly spaced, whose patches are read: at least so many, and less than twice as many.
ROWS = 5000
AT_A_TIME = 1000


class Whitening(nn.Conv2d):
    """A 2x2 convolution to 2 D channels. Its bias is trained, its weights alone where ``frozen`` is false."""

    def __init__(self, channels: int, frozen: bool = True) -> None:
        super().__init__(channels, 2 * SIDE**2 * channels, SIDE)
        self.frozen = frozen
        self.weight.requires_grad_(not frozen)

    @torch.no_grad()
    def init_from_data(self, prepared: Prepared) -> None:
        """Take the filters that whiten the training split of ``prepared``."""
        if not self.frozen:
            return
        rows = prepared.rows("train")
        rows = rows[:: max(1, len(rows) // ROWS)]
        device = self.weight.device
        mean, deviation = (torch.tensor(prepared.description[name], device=device) for name in ("mean", "deviation"))
        images = torch.from_numpy(prepared.arrays["images"][rows]).to(device)
        images = ((images / 255 - mean) / deviation).permute(0, 3, 1, 2)
        filters = whitening_filters(images, EPSILON).to(self.weight.dtype)
        self.weight.copy_(torch.cat((filters, -filters)))

    def forward(self, images: Tensor, activate: nn.Module | None = None) -> Tensor:
        """images float [n, C, H, W] -> [n, 2 D, H - 1, W - 1], with ``activate`` applied.

        In float32, or float64 of such weights, since filters of small eigenvalues subtract numbers that are nearly
        equal; then float32 is rounded to the weights' type or to that of autocast.
        """
        device = images.device.type
        computed = torch.promote_types(self.weight.dtype, torch.float32)
        images, weight, bias = (tensor.to(computed) for tensor in (images, self.weight, self.bias))  # type: ignore[union-attr]
        autocast = torch.is_autocast_enabled(device) and computed == torch.float32
        dtype = torch.get_autocast_dtype(device) if autocast else self.weight.dtype
        if self._has_kernel(images):
            name = None if trained_beta(activate) is not None else kernel_of(activate)
            x = patch_convolution(images, weight, bias, name or "none", dtype)
            return x if name or activate is None else activate(x)
        with torch.autocast(device, enabled=False):
            x = self._conv_forward(images, weight, bias).to(dtype)
        return x if activate is None else activate(x)

    def _has_kernel(self, images: Tensor) -> bool:
        """Return whether the kernel computes it: for fixed filters of images of its numbers of channels."""
        fixed = not (self.weight.requires_grad or images.requires_grad)
        return fixed and images.shape[1] in CHANNELS and has_kernel("patch_convolution", images)


def whitening_filters(images: Tensor, epsilon: float) -> Tensor:
    """images float [n, C, H, W] -> filters float64 [D, C, 2, 2] on the CPU, by falling eigenvalue.

    The patches of the result have the second moments of the identity, but for ``epsilon``.
    """
    channels = images.shape[1]
    moments: Any  # float64 [D, D] after the first images
    moments, count = 0, 0
    for some in images.split(AT_A_TIME):
        patches = some.double().unfold(2, SIDE, 1).unfold(3, SIDE, 1).movedim(1, 3).flatten(3).flatten(0, 2)
        moments, count = moments + patches.T @ patches, count + len(patches)
    values, vectors = torch.linalg.eigh((moments / count).cpu())
    filters = (vectors / (values + epsilon).sqrt()).flip(1).T
    return filters.reshape(-1, channels, SIDE, SIDE)
