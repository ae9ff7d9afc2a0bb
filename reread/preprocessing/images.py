"""Images as uint8 arrays, and the exact mean and standard deviation of each channel over the training split.

Sums of pixels and of their squares are integers: the order of summation changes nothing, and sums of shards add up to
those of the whole. Only the two results are rounded, once, to float64.

Shape legend: N images of H x W pixels and C channels.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from reread import goals
from reread.kinds.image import Settings as ImageSettings
from reread.preprocessing.raw_images import ImageDataSet, move_boxes, parts, write_images
from reread.preprocessing.reduction import reduce_images
from reread.preprocessing.rows import choose_rows
from reread.storage.errors import InputError

LARGEST_PIXEL = 255


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

    images.npy uint8 [N, H, W, C], reduced to ``settings.size`` where there is one; labels.npy int32 [N] or
    uint8 [N, K]; raw_indices.npy int64 [N], each row's number in the data's files; and where there are boxes,
    boxes.npy float64 [B, 6]: row, class, left, top, width and height, the last four as shares of the image.
    """
    labels: list[tuple[int, ...]]
    labels = [(label,) for label in data.labels.tolist()] if data.labels.ndim == 1 else _class_numbers(data.labels)
    if goals.beyond_labels(data.entry.task):  # rows with equal targets are a class
        _, targets = np.unique(data.labels, axis=0, return_inverse=True)
        labels = [(target,) for target in targets.ravel().tolist()]
    ids = [str(number) for number in range(len(data.images))]
    rows = choose_rows(data.name, data.split, labels, ids, settings.rows_per_class)
    np.save(working / "labels.npy", data.labels[rows.source], allow_pickle=False)
    np.save(working / "raw_indices.npy", rows.source, allow_pickle=False)
    if data.boxes is not None:
        places = np.full(len(data.images), -1)
        places[rows.source] = np.arange(len(rows.source))
        np.save(working / "boxes.npy", move_boxes(data.boxes, places), allow_pickle=False)

    _, height, width, channels = data.images.shape
    sides = (settings.size, settings.size) if settings.size else (height, width)
    last = rows.splits["train"][1]
    sums = PixelSums(0, (0,) * channels, (0,) * channels)

    def written() -> Iterator[np.ndarray]:
        nonlocal sums
        for part in parts(data.images):
            images = data.images[rows.source[part]]
            if settings.size:
                images = reduce_images(images, settings.size)
            sums += pixel_sums(images[: max(0, last - part.start)])
            yield images

    try:
        write_images(working / "images.npy", (len(rows.source), *sides, channels), written())
        return {"splits": rows.splits, "mean": sums.mean(), "deviation": sums.deviation()}
    except InputError as error:
        raise InputError(f"data set '{data.name}': {error}") from None


def _class_numbers(labels: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in labels]
