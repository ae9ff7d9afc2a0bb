"""Random changes of training images. An augmentation is one file, batches/augmentations/NAME.py, with

    Settings   a frozen dataclass of its settings
    apply      apply(images, generator, settings) -> images: float32 [n, C, H, W], normalised, on the generator's device

and is listed in ``training.augmentation`` as ``{name: NAME, ...}``; several are applied in the order of the list. Only
batches of training are augmented: validation, evaluation and serving see images as they are.
"""
