"""MultiMNIST: two digits of different classes laid over each other, in 36 x 36 pixels.

Source: Sabour, Frosst and Hinton, Dynamic Routing Between Capsules, NIPS 2017, section 6: each digit is shifted by up
to 4 pixels in each direction. The paper says that the boxes of 20 x 20 pixels that bound the digits overlap by 80 % on
average; even shifts make that 73 % of their area, 85 % in each direction. Pixels are added and clipped at 255.

Validation and test have one pair for each digit of MNIST's, the other digit drawn from the same split. The training
split has the single digits, centred: training makes new pairs of them in each batch, by ``augmentation: [{name: shift,
pixels: 4, padding: darkest}, {name: overlay}]``. The paper draws 1,000 pairs for each digit beforehand, which are
60 million images.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources import mnist
from reread.storage.prepared import SPLITS

ARCHIVES = mnist.ARCHIVES
SHIFT = 4
SEED = 0
ABOUT = replace(
    mnist.ABOUT,
    source="pairs of MNIST's digits (LeCun, Cortes, Burges, 1998), after Sabour, Frosst and Hinton 2017, section 6",
    task="multi-label",
)


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [70000, 36, 36, 1], labels uint8 [70000, 10], split uint8 [70000]. InputError as mnist."""
    digits = mnist.rows(archives, progress)
    progress("laying pairs of digits over each other")
    generator = np.random.default_rng(SEED)
    labels = (digits.labels[:, None] == np.arange(len(ABOUT.classes))).astype(np.uint8)
    images = placed(digits.images, np.full((len(labels), 2), SHIFT), SHIFT)
    for split in ("validation", "test"):
        own = np.flatnonzero(digits.split == SPLITS.index(split))
        others = own[partners(digits.labels[own], generator)]
        corners = generator.integers(0, 2 * SHIFT + 1, (2, len(own), 2))
        both = (placed(digits.images[rows], corner, SHIFT) for rows, corner in zip((own, others), corners, strict=True))
        images[own] = np.minimum(np.add(*both, dtype=np.uint16), 255)
        labels[own] |= labels[others]
    return ImageRows(ABOUT, images, labels, digits.split)


def placed(images: np.ndarray, corners: np.ndarray, margin: int) -> np.ndarray:
    """Place images uint8 [N, H, W, C] on black ones with ``margin`` pixels more on each side.

    corners: int [N, 2], the row and column of each one's upper left corner, from 0 to 2 ``margin``.
    """
    count, height, width, channels = images.shape
    canvas = np.zeros((count, height + 2 * margin, width + 2 * margin, channels), np.uint8)
    rows = corners[:, :1] + np.arange(height)
    columns = corners[:, 1:] + np.arange(width)
    canvas[np.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]] = images
    return canvas


def partners(labels: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw for each row, of labels int [N], a row of another class, evenly; at least two classes must be there."""
    chosen = generator.integers(0, len(labels), len(labels))
    while (same := np.flatnonzero(labels[chosen] == labels)).size:
        chosen[same] = generator.integers(0, len(labels), same.size)
    return chosen
