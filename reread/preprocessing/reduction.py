"""Images reduced to a smaller square: each pixel is the mean of the area that it covers.

Shape legend: n images of H x W pixels and C channels, reduced to S x S.
"""

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from PIL import Image, UnidentifiedImageError

from reread.storage.errors import InputError

READ_AHEAD = 4  # images a thread that wait decoded, so that memory does not grow with the archive


def reduce_images(images: np.ndarray, size: int) -> np.ndarray:
    """Reduce images uint8 [n, H, W, C] -> uint8 [n, S, S, C], within one of the means; of that size they stay as given.

    InputError for images that are smaller than ``size``.
    """
    _, height, width, channels = images.shape
    if min(height, width) < size:
        least = min(height, width)
        raise InputError(f"size is {size}, and the images have {height} x {width} pixels: give at most {least}")
    if height == width == size:
        return images
    reduced = np.empty((len(images), size, size, channels), np.uint8)
    for number, image in enumerate(images):
        for channel in range(channels):
            plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))
            reduced[number, ..., channel] = _reduce(plane, size)
    return reduced


def _reduce(image: Image.Image, size: int) -> np.ndarray:
    """Whole factors are reduced in one step; others per axis, each rounded."""
    if image.width % size == image.height % size == 0:
        return np.asarray(image.reduce((image.width // size, image.height // size)))
    return np.asarray(image.resize((size, size), Image.Resampling.BOX))


def read_grey(content: bytes, size: int, where: str) -> np.ndarray:
    """Decode an image file of any mode to grey uint8 [S, S, 1]; transparency is left out.

    InputError, which begins with ``where``, for a file that is no image or is smaller than ``size``.
    """
    try:
        with Image.open(io.BytesIO(content)) as image:
            grey = image.convert("L")
    except (UnidentifiedImageError, OSError, SyntaxError) as error:
        raise InputError(f"{where} cannot be decoded ({error}): download its archive again") from None
    if min(grey.size) < size:
        raise InputError(f"{where} has {grey.width} x {grey.height} pixels, fewer than {size}: it is not as published")
    return _reduce(grey, size)[..., None]


def read_all_grey(files: Iterable[tuple[str, bytes]], size: int) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (name, ``read_grey``) of each of ``files`` in their order, decoded by a thread per core, a few ahead."""
    threads = len(os.sched_getaffinity(0))
    waiting: deque[tuple[str, Future[np.ndarray]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for name, content in files:
                waiting.append((name, pool.submit(read_grey, content, size, name)))
                if len(waiting) > READ_AHEAD * threads:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            pool.shutdown(cancel_futures=True)
