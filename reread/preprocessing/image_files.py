"""A user's image files, decoded: formats by name, upright, 8 bits per channel."""

from pathlib import Path

import numpy as np

from reread.storage.errors import InputError

# Pillow decodes others too, PostScript by starting Ghostscript on it.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
GREY, DEEP_GREY = ("1", "L"), ("I;16", "I;16B", "I;16L", "I;16N")
OF_8_BITS = 257  # the largest value of 16 bits is 257 times that of 8


def read_image(path: Path, where: str, size: int | None = None) -> tuple[np.ndarray, int]:
    """Return an image as uint8 [H, W, 1] or [H, W, 3], and the largest value of one of 16 bits, 0 of any other.

    The orientation of its EXIF is applied; 65,535 becomes 255. size: both sides, in pixels, to which it is resized.
    InputError, which begins with ``where``, for a file of no known format, and for pixels of unknown range.
    """
    from PIL import Image, ImageOps

    largest = 0
    try:
        with Image.open(path, formats=FORMATS) as opened:
            image = ImageOps.exif_transpose(opened)
            if image.mode in DEEP_GREY:
                deep = np.asarray(image).astype(np.uint32)
                largest = int(deep.max())
                image = Image.fromarray(((deep + OF_8_BITS // 2) // OF_8_BITS).astype(np.uint8))
            elif image.mode not in ("I", "F"):
                image = image.convert("L" if image.mode in GREY else "RGB")
    except Exception as error:  # a damaged file raises errors of many kinds
        raise InputError(
            f"{where}: {path} is no image that can be read as one of {', '.join(FORMATS)} ({error})"
        ) from None
    if image.mode not in ("L", "RGB"):
        raise InputError(f"{where}: {path} has pixels of 32 bits, whose range is not known: save it with 8 or 16 bits")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(image.height, image.width, -1), largest
