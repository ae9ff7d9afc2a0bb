"""MNIST's digits anywhere in 40 x 40 pixels for training, and affine transforms of them for test, made as affNIST is.

This is not the published affNIST, which the source ``affnist`` reads: it is for where that set is not at hand. As in
Sabour, Frosst and Hinton 2017, section 5.1, a network learns from digits that are only moved, and is tested on digits
that are transformed.

Training digits are centred: training moves them by ``augmentation: [{name: shift, pixels: 6, padding: darkest}]``.
Those of validation have random places. Each of MNIST's 10,000 test digits is transformed once, by affNIST's ranges
(https://www.cs.toronto.edu/~tijmen/affNIST): rotation by up to 20 degrees, shear by up to 0.2, scale from 0.8 to 1.2 in
each direction, then a place in which all ink is inside the image, all drawn evenly; linear interpolation.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources import mnist
from reread.preprocessing.sources.multimnist import placed
from reread.storage.prepared import SPLITS

ARCHIVES = mnist.ARCHIVES
MARGIN = 6
SEED = 0
DEGREES, SHEAR, SCALES = 20.0, 0.2, (0.8, 1.2)
# Pixels on each side of the image in which a digit is transformed, so that no ink is lost before it is placed.
ROOM = 20
ABOUT = replace(
    mnist.ABOUT,
    source="MNIST (LeCun, Cortes, Burges, 1998) in 40 x 40 pixels; its test split transformed here by the ranges of "
    "affNIST (https://www.cs.toronto.edu/~tijmen/affNIST), of which it is no copy",
)


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [70000, 40, 40, 1], labels int32 [70000], split uint8 [70000]. InputError as mnist."""
    digits = mnist.rows(archives, progress)
    progress("transforming the digits of the test split")
    generator = np.random.default_rng(SEED)
    images = moved(digits, generator)
    for row in np.flatnonzero(digits.split == SPLITS.index("test")):
        images[row, :, :, 0] = transformed(digits.images[row, :, :, 0], generator)
    return ImageRows(ABOUT, images, digits.labels, digits.split)


def moved(digits: ImageRows, generator: np.random.Generator) -> np.ndarray:
    """Return the digits uint8 [N, 40, 40, 1]: those of the training split centred, the others at random places."""
    corners = generator.integers(0, 2 * MARGIN + 1, (len(digits.images), 2))
    corners[digits.split == SPLITS.index("train")] = MARGIN
    return placed(digits.images, corners, MARGIN)


def transformed(image: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Return a random affine transform of an image uint8 [28, 28] as uint8 [40, 40]."""
    # Imported here: it takes 0.2 s to import.
    from scipy import ndimage

    angle = math.radians(generator.uniform(-DEGREES, DEGREES))
    shear = generator.uniform(-SHEAR, SHEAR)
    rotation = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    matrix = rotation @ np.array([[1, 0], [shear, 1]]) @ np.diag(generator.uniform(*SCALES, 2))
    inverse = np.linalg.inv(matrix)
    size = np.array(image.shape)
    large = size + 2 * ROOM
    offset = (size - 1) / 2 - inverse @ ((large - 1) / 2)
    moved = ndimage.affine_transform(image.astype(np.float32), inverse, offset, tuple(large), order=1)
    pixels = np.rint(moved).astype(np.uint8)
    corner = []
    for axis in (1, 0):
        ink = np.flatnonzero(pixels.any(axis=axis))
        low, high = ink[-1] - (image.shape[0] + 2 * MARGIN - 1), ink[0]
        corner.append(int(generator.integers(min(low, high), high + 1)))
    side = image.shape[0] + 2 * MARGIN
    first = np.clip(corner, 0, large - side)
    return pixels[first[0] : first[0] + side, first[1] : first[1] + side]
