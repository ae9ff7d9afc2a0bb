"""Evaluation of several views of each image: the mean of the logits of the image, its mirror image, and shifted ones.

Sources: Krizhevsky, Sutskever and Hinton, ImageNet Classification with Deep Convolutional Neural Networks, NIPS 2012,
section 4.1 (mirror images and crops); Jordan, arXiv 2404.00498, 2024, section 3.5, whose six views these are.

Shape legend: N images, C channels, H x W pixels, K classes.
"""

from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

# The image; with its mirror image; both also of the image shifted by a pixel towards either end of the diagonal.
Views = Literal["image", "mirrored", "mirrored_shifted"]


class ViewAverage(nn.Module):
    """A network with ``logits(images)`` that averages ``views`` in evaluation; training reads the image alone."""

    views: Views = "image"

    def forward(self, images: Tensor) -> Tensor:
        """images float [N, C, H, W], normalised -> logits float [N, K]."""
        if self.training or self.views == "image":
            return self.logits(images)
        logits = self._both_ways(images)
        if self.views == "mirrored":
            return logits
        height, width = images.shape[2:]
        padded = functional.pad(images, (1, 1, 1, 1), "reflect")
        ends = (padded[:, :, :height, :width], padded[:, :, 2:, 2:])
        return 0.5 * logits + 0.25 * sum(self._both_ways(end) for end in ends)

    def logits(self, images: Tensor) -> Tensor:
        """images float [N, C, H, W], normalised -> logits float [N, K]."""
        raise NotImplementedError

    def _both_ways(self, images: Tensor) -> Tensor:
        return 0.5 * (self.logits(images) + self.logits(images.flip(3)))
