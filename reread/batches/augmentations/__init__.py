"""Random changes of training images. An augmentation is one file, reread/batches/augmentations/NAME.py, with

    Settings   a frozen dataclass of its settings
    apply      apply(images, generator, settings) -> images: float32 [n, C, H, W], normalised, on the generator's device
    BY_ROW     optional: True calls apply(images, rows, settings) with the Rows of the batch in place of a generator
    LABELLED   optional: where True, apply(images, target, generator, settings) -> images, target

and is listed in ``training.augmentation`` as ``{name: NAME, SETTING: VALUE}``; several are applied in the order of the
list. Only batches of training are augmented: validation, evaluation and serving see images as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reread import kinds
from reread.storage.errors import InputError
from reread.storage.registry import Registry
from reread.storage.settings import Tagged

REGISTRY = Registry("reread.batches.augmentations", "augmentation", ("Settings", "apply"))


@dataclass(frozen=True)
class Rows:
    """The rows of a batch. numbers: int64 [n] in the prepared arrays, on the device; seed: the run's; epoch: from 1."""

    numbers: Tensor
    seed: int
    epoch: int


class Augment:
    """Applies augmentations in order."""

    def __init__(self, augmentation: Sequence[Tagged]) -> None:
        self.steps = [REGISTRY.resolve(step) for step in augmentation]
        self.by_row = any(_by_row(module) for module, _ in self.steps)

    def __call__(
        self, images: Tensor, target: Tensor, generator: torch.Generator, rows: Rows | None = None
    ) -> tuple[Tensor, Tensor]:
        """Change ``images`` [n, C, H, W] and their ``target``; rows: those of the images, where ``by_row``."""
        for module, settings in self.steps:
            if getattr(module, "LABELLED", False):
                images, target = module.apply(images, target, generator, settings)
            else:
                images = module.apply(images, rows if _by_row(module) else generator, settings)
        return images, target


def _by_row(module: object) -> bool:
    return getattr(module, "BY_ROW", False)


def build(augmentation: Sequence[Tagged], kind: str) -> Augment | None:
    """Build what applies each of ``augmentation`` in order; None where there is none.

    InputError where rows of ``kind`` of data are not images, and for an unknown name or setting.
    """
    if not augmentation:
        return None
    if not kinds.kind(kind).augmented:
        names = ", ".join(step["name"] for step in augmentation)
        raise InputError(f"augmentation is for images, and this is {kind} data: remove {names} from augmentation")
    return Augment(augmentation)


def make_generator(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """Make the generator from which an epoch's augmentation is drawn: a function of (seed, epoch) and the device.

    Its stream is neither that of the data's order nor that of dropout.
    """
    drawn = np.random.SeedSequence([seed, epoch], spawn_key=(1,)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(drawn))
