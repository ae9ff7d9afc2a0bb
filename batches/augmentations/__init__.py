"""Random changes of training images. An augmentation is one file, batches/augmentations/NAME.py, with

    Settings   a frozen dataclass of its settings
    apply      apply(images, generator, settings) -> images: float32 [n, C, H, W], normalised, on the generator's device
    LABELLED   optional: where True, apply(images, target, generator, settings) -> images, target

and is listed in ``training.augmentation`` as ``{name: NAME, SETTING: VALUE}``; several are applied in the order of the
list. Only batches of training are augmented: validation, evaluation and serving see images as they are.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

import kinds
from storage.errors import InputError
from storage.registry import Registry
from storage.settings import Tagged

REGISTRY = Registry("batches.augmentations", "augmentation", ("Settings", "apply"))


# f(images, target, generator) -> images, target
Augment = Callable[[Tensor, Tensor, torch.Generator], tuple[Tensor, Tensor]]


def build(augmentation: Sequence[Tagged], kind: str) -> Augment | None:
    """Build what applies each of ``augmentation`` in order; None where there is none.

    InputError where rows of ``kind`` of data are not images, and for an unknown name or setting.
    """
    if not augmentation:
        return None
    if not kinds.kind(kind).augmented:
        names = ", ".join(one["name"] for one in augmentation)
        raise InputError(f"augmentation is for images, and this is {kind} data: remove {names} from augmentation")
    steps = [REGISTRY.resolve(one) for one in augmentation]

    def apply(images: Tensor, target: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        for module, settings in steps:
            if getattr(module, "LABELLED", False):
                images, target = module.apply(images, target, generator, settings)
            else:
                images = module.apply(images, generator, settings)
        return images, target

    return apply


def make_generator(seed: int, epoch: int, device: torch.device) -> torch.Generator:
    """Make the generator from which an epoch's augmentation is drawn: a function of (seed, epoch) and the device.

    Its stream is neither that of the data's order nor that of dropout.
    """
    drawn = np.random.SeedSequence([seed, epoch], spawn_key=(1,)).generate_state(1, np.uint64)[0]
    return torch.Generator(device).manual_seed(int(drawn))
