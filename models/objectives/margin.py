"""The margin loss of capsules' lengths, and the reconstruction of the image from the right capsules.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, section 3 (equation 4) and section 4.1:
T max(0, .9 - length)^2 + .5 (1 - T) max(0, length - .1)^2, summed over the classes, and .0005 times the sum of squared
differences of the pixels. Pixels are between 0 and 1: what normalisation did to the network's input is undone.

A row with several labels is right where their capsules are the longest. Each is decoded alone, and a pixel a of one and
b of the other join to 1 - (1 - a) (1 - b): a sum that is clipped at 1 would leave half of the pixels without a gradient
at first. The paper compares each with the image of that digit alone, which our data do not keep.

Shape legend: n rows, K classes, D dimensions of a capsule, L labels of a row, C x H x W pixels.
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn

from models.objectives import scores
from reread.storage.settings import Range


@dataclass(frozen=True)
class Settings:
    """The settings of this objective.

    upper: the length above which a label's capsule costs nothing; lower: the one below which another's does not.

    absent_weight: of the capsules of absent classes; reconstruction_weight: of the squared differences of the pixels,
    where the network has a decoder; 0: nothing is decoded. labels_per_row: the most labels that a row has.
    """

    upper: Annotated[float, Range(0, 1)] = 0.9
    lower: Annotated[float, Range(0, 1)] = 0.1
    absent_weight: Annotated[float, Range(0, 100)] = 0.5
    reconstruction_weight: Annotated[float, Range(0, 100)] = 0.0005
    labels_per_row: Annotated[int, Range(1, 100)] = 1


class Margin:
    """mean, deviation: of the pixels of each channel, float32 [C, 1, 1], by which images were normalised, or None."""

    def __init__(self, settings: Settings, several: bool, mean: Tensor | None, deviation: Tensor | None) -> None:
        self.settings = settings
        self.several = several
        self.mean = mean
        self.deviation = deviation

    def loss(self, network: nn.Module, outputs: Any, target: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        lengths = scores(outputs)
        loss = self.held_out_loss(lengths, target)
        if not isinstance(outputs, tuple) or not self.settings.reconstruction_weight or self.mean is None:
            return loss
        (images,) = inputs
        error = self._reconstruction(network, outputs[1], self._present(lengths, target)) - self._pixels(images)
        return loss + self.settings.reconstruction_weight * error.square().sum(dim=1).mean()

    def held_out_loss(self, scores: Tensor, target: Tensor) -> Tensor:
        present = self._present(scores, target)
        short = (self.settings.upper - scores).clamp(min=0).square()
        long = (scores - self.settings.lower).clamp(min=0).square()
        return torch.where(present, short, self.settings.absent_weight * long).sum(dim=1).mean()

    def probabilities(self, scores: Tensor) -> Tensor:
        """Return the lengths; those of one label are divided by their sum."""
        return scores.clamp(0, 1) if self.several else scores / scores.sum(dim=1, keepdim=True)

    def correct(self, scores: Tensor, target: Tensor) -> Tensor:
        """Return whether the capsules of all labels of a row are longer than the others, bool [n]."""
        if not self.several:
            return scores.argmax(dim=1) == target
        present = target.bool()
        shortest = scores.masked_fill(~present, float("inf")).amin(dim=1)
        return shortest > scores.masked_fill(present, float("-inf")).amax(dim=1)

    def _present(self, lengths: Tensor, target: Tensor) -> Tensor:
        """Return which classes each row has, bool [n, K]."""
        return target.bool() if self.several else _one_hot(target, lengths.shape[1]).bool()

    def _reconstruction(self, network: Any, capsules: Tensor, present: Tensor) -> Tensor:
        """Decode capsules [n, K, D] of the present classes, bool [n, K] -> pixels [n, C H W]."""
        count, classes = present.shape
        if self.settings.labels_per_row == 1:
            return network.reconstruct(capsules, present.float())
        there, chosen = present.float().topk(self.settings.labels_per_row, dim=1)
        mask = _one_hot(chosen, classes) * there.unsqueeze(2)
        repeated = capsules.unsqueeze(1).expand(-1, mask.shape[1], -1, -1)
        pixels = network.reconstruct(repeated.flatten(0, 1), mask.flatten(0, 1)).view(count, mask.shape[1], -1)
        # Tensor.prod waits for the device in its backward pass.
        return 1 - functools.reduce(torch.mul, (1 - pixels * there.unsqueeze(2)).unbind(dim=1))

    def _pixels(self, images: Tensor) -> Tensor:
        """Return the pixels 0 to 1 [n, C H W] of normalised images [n, C, H, W]."""
        # The first step copies them, before a CUDA graph is captured.
        self.mean, self.deviation = self.mean.to(images.device), self.deviation.to(images.device)  # type: ignore[union-attr]
        return (images * self.deviation + self.mean).flatten(1)


def _one_hot(classes: Tensor, number: int) -> Tensor:
    """Return 1 where the class is, float32 [..., number]; functional.one_hot may wait for the device."""
    return (classes.unsqueeze(-1) == torch.arange(number, device=classes.device)).float()


def build(settings: Settings, description: Mapping[str, Any], labels: np.ndarray | None) -> Margin:
    normalisation = [
        torch.tensor(description[name]).reshape(-1, 1, 1) if name in description else None
        for name in ("mean", "deviation")
    ]
    return Margin(settings, description["task"] == "multi-label", *normalisation)
