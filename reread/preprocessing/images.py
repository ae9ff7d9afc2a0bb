"""Images as uint8 arrays, and the exact mean and standard deviation of each channel over the training split.

Pixels are counted by their value, in integers: the order changes nothing, and counts of shards add up to those of the
whole. Only the two results are rounded, once, to float64.

Shape legend: N images of H x W pixels and C channels.
"""

import math
from collections.abc import Iterator
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


def count_pixels(images: np.ndarray) -> np.ndarray:
    """Count the pixels of each value for each channel: images uint8 [N, H, W, C] -> int64 [C, 256]."""
    channels = range(images.shape[-1])
    return np.stack([np.bincount(images[..., channel].ravel(), minlength=LARGEST_PIXEL + 1) for channel in channels])


def mean_and_deviation(counts: np.ndarray) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation (of the population) of pixel / 255 of each channel, float64.

    counts: those of ``count_pixels``.
    InputError for a channel that has one value only: its deviation is 0, and pixels are divided by it.
    """
    means, deviations = [], []
    for channel, of_values in enumerate(counts.tolist()):
        count = sum(of_values)
        total = sum(pixel * number for pixel, number in enumerate(of_values))
        squares = sum(pixel**2 * number for pixel, number in enumerate(of_values))
        spread = count * squares - total * total  # count^2 times the variance of the pixel
        if spread == 0:
            raise InputError(
                f"channel {channel} has one value in all images of the training split: leave the channel out"
            )
        means.append(float(Fraction(total, LARGEST_PIXEL * count)))
        deviations.append(math.sqrt(Fraction(spread, (LARGEST_PIXEL * count) ** 2)))
    return means, deviations


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
    source, splits = choose_rows(data.name, data.split, labels, ids, settings.rows_per_class)
    np.save(working / "labels.npy", data.labels[source], allow_pickle=False)
    np.save(working / "raw_indices.npy", source, allow_pickle=False)
    if data.boxes is not None:
        places = np.full(len(data.images), -1)
        places[source] = np.arange(len(source))
        np.save(working / "boxes.npy", move_boxes(data.boxes, places), allow_pickle=False)

    _, height, width, channels = data.images.shape
    sides = (settings.size, settings.size) if settings.size else (height, width)
    last = splits["train"][1]
    counts = np.zeros((channels, LARGEST_PIXEL + 1), np.int64)

    def written() -> Iterator[np.ndarray]:
        nonlocal counts
        for part in parts(data.images):
            images = data.images[source[part]]
            if settings.size:
                images = reduce_images(images, settings.size)
            counts += count_pixels(images[: max(0, last - part.start)])
            yield images

    try:
        write_images(working / "images.npy", (len(source), *sides, channels), written())
        mean, deviation = mean_and_deviation(counts)
        return {"splits": splits, "mean": mean, "deviation": deviation}
    except InputError as error:
        raise InputError(f"data set '{data.name}': {error}") from None


def _class_numbers(labels: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(np.flatnonzero(row).tolist()) for row in labels]
