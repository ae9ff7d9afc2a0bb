"""Lay another image of the batch over each, of another class, and give it the labels of both.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, section 6 (MultiMNIST). Pixels are added
and clipped: the batch's lowest value is black, its highest is white. Where the batch has no other class, an image stays
alone. Shift images before, and each of a pair has a shift of its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from reread.storage.errors import InputError

LABELLED = True


@dataclass(frozen=True)
class Settings:
    """This augmentation has no settings."""


def apply(images: Tensor, target: Tensor, generator: torch.Generator, settings: Settings) -> tuple[Tensor, Tensor]:
    """Return pairs of ``images`` [n, C, H, W] and their labels, ``target`` float32 [n, K].

    InputError where a row can have one label only.
    """
    if target.ndim == 1:
        raise InputError("overlay gives rows the labels of two images, and this data set's rows have one label each")
    count = len(images)
    draws = torch.rand(count, count, generator=generator, device=images.device)
    best, partner = draws.masked_fill(target @ target.T > 0, -1).max(dim=1)
    paired = best >= 0
    low, high = images.amin(), images.amax()
    both = torch.minimum(images + images[partner] - low, high)
    labels = torch.maximum(target, target[partner])
    return torch.where(paired.view(-1, 1, 1, 1), both, images), torch.where(paired.unsqueeze(1), labels, target)
