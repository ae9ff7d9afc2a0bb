"""Raw images as a network reads them, for the few of a request."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reread.kinds import Reading
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared

IMAGES_PER_PART = 1024


class ImageReader:
    """Reads a request's images, uint8 [n, H, W, C] of the height, width and channels of the training split."""

    FILES = PACKAGES = ()
    PARAMETERS: Mapping[str, Any] = {}

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.shape = _shape(description)

    @staticmethod
    def model_input(values: Any, description: Mapping[str, Any]) -> np.ndarray:
        """Return the images; InputError for another dtype or shape. MLflow's own error would print all of them."""
        images, shape = np.asarray(values), _shape(description)
        if images.dtype != np.uint8 or images.shape[1:] != shape:
            wanted = ", ".join(map(str, ("N", *shape)))
            raise InputError(f"the model reads images of uint8 [{wanted}], not {images.dtype} {list(images.shape)}")
        return images

    @staticmethod
    def example(prepared: Prepared, count: int) -> np.ndarray:
        """Return the first ``count`` images of the validation split."""
        return np.asarray(prepared.arrays["images"][prepared.rows("validation")[:count]])

    @staticmethod
    def limits(description: Mapping[str, Any]) -> list[str]:
        """Return what the network does not read."""
        shape = " x ".join(map(str, _shape(description)))
        return [f"Reads images of {shape} (height, width, channels) alone."]

    def check(self, model_input: Any) -> np.ndarray:
        """Return the images; ValueError for another dtype or shape."""
        images = np.asarray(model_input)
        if images.dtype != np.uint8 or images.shape[1:] != self.shape:
            raise ValueError(f"images must be uint8 [N, H, W, C] of {self.shape}, not {images.dtype} {images.shape}")
        return images

    def parts(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the images in order, IMAGES_PER_PART at a time."""
        for start in range(0, len(rows), IMAGES_PER_PART):
            yield rows[start : start + IMAGES_PER_PART]

    def blank(self) -> np.ndarray:
        """Return one black image."""
        return np.zeros((1, *self.shape), np.uint8)

    def read(self, rows: np.ndarray) -> Reading:
        """Return the images as they are."""
        return Reading(arrays={"images": rows})


def _shape(description: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(description["arrays"]["images"]["shape"][1:])
