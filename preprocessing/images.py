"""Images as uint8 arrays, and the exact mean and standard deviation of each channel over the training split.

Sums of pixels and of their squares are integers: the order of summation changes nothing, and sums of shards add up to
those of the whole. Only the two results are rounded, once, to float64.

Shape legend: N images of H x W pixels and C channels.
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from kinds.image import Settings as ImageSettings
from preprocessing.raw_images import ImageDataSet
from preprocessing.rows import choose_rows
from storage.errors import InputError

LARGEST_PIXEL = 255
ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class PixelSums:
    """The sum of each channel's pixels and of their squares, over ``count`` pixels per channel."""

    count: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]

    def __add__(self, other: "PixelSums") -> "PixelSums":
        return PixelSums(
            self.count + other.count,
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
        )

    def mean(self) -> list[float]:
        """Return the mean of pixel / 255 of each channel, float64, rounded once."""
        return [float(Fraction(total, LARGEST_PIXEL * self.count)) for total in self.sums]

    def deviation(self) -> list[float]:
        """Return the standard deviation (of the population) of pixel / 255 of each channel, float64.

        InputError for a channel that has one value only: its deviation is 0, and pixels are divided by it.
        """
        deviations = []
        for channel, (total, squares) in enumerate(zip(self.sums, self.squares, strict=True)):
            spread = self.count * squares - total * total  # count^2 times the variance of the pixel
            if spread == 0:
                raise InputError(
                    f"channel {channel} has one value in all images of the training split: leave the channel out"
                )
            deviations.append(math.sqrt(Fraction(spread, (LARGEST_PIXEL * self.count) ** 2)))
        return deviations


def pixel_sums(images: np.ndarray) -> PixelSums:
    """Sum the pixels of images uint8 [N, H, W, C] for each channel."""
    channels = images.shape[-1]
    # A histogram of 256 values per channel gives the exact sums without a wider copy of the pixels.
    values = np.arange(LARGEST_PIXEL + 1)
    histograms = [np.bincount(images[..., channel].ravel(), minlength=LARGEST_PIXEL + 1) for channel in range(channels)]
    return PixelSums(
        images.size // channels,
        tuple(int(counts @ values) for counts in histograms),
        tuple(int(counts @ values**2) for counts in histograms),
    )


def prepare(data: ImageDataSet, settings: ImageSettings, working: Path) -> dict[str, Any]:
    """Write the arrays of an image data set into ``working`` and return their entries for prepared.json.

    images.npy uint8 [N, H, W, C], unchanged; labels.npy int32 [N] or uint8 [N, K];
    raw_indices.npy int64 [N], each row's number in the data's files.
    """
    labels = [(label,) for label in data.labels.tolist()] if data.labels.ndim == 1 else _class_numbers(data.labels)
    ids = [str(number) for number in range(len(data.images))]
    rows = choose_rows(data.name, data.split, labels, ids, settings.rows_per_class)
    np.save(working / "labels.npy", data.labels[rows.source], allow_pickle=False)
    np.save(working / "raw_indices.npy", rows.source, allow_pickle=False)

    shape = (len(rows.source), *data.images.shape[1:])
    images = np.lib.format.open_memmap(working / "images.npy", mode="w+", dtype=np.uint8, shape=shape)
    for start in range(0, len(images), ROWS_AT_A_TIME):
        images[start : start + ROWS_AT_A_TIME] = data.images[rows.source[start : start + ROWS_AT_A_TIME]]
    images.flush()

    train = images[: rows.splits["train"][1]]
    parts = (pixel_sums(train[start : start + ROWS_AT_A_TIME]) for start in range(0, len(train), ROWS_AT_A_TIME))
    sums = reduce(add, parts)
    try:
        return {"splits": rows.splits, "mean": sums.mean(), "deviation": sums.deviation()}
    except InputError as error:
        raise InputError(f"data set '{data.name}': {error}") from None


def _class_numbers(labels: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in labels]
