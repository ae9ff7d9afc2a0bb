"""A user's image files, decoded: formats by name, upright, 8 bits per channel, of one shape."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reread.storage.errors import InputError

# Pillow decodes others too, PostScript by starting Ghostscript on it.
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP")
GREY, DEEP_GREY = ("1", "L"), ("I;16", "I;16B", "I;16L", "I;16N")
MODES = {"grey": "L", "rgb": "RGB"}
COLOURS = {1: "grey", 3: "rgb"}  # by channels
MOST_NAMES = 10
OF_8_BITS = 257  # the largest value of 16 bits is 257 times that of 8


class Image(NamedTuple):
    """pixels: uint8 [H, W, 1] or [H, W, 3]; largest: the largest value of one of 16 bits, 0 of any other; frames: how
    many the file has, of which the first is read."""

    pixels: np.ndarray
    largest: int
    frames: int


def read_image(path: Path, where: str, size: int | None = None, colours: str | None = None) -> Image:
    """Read an image. The orientation of its EXIF is applied; 65,535 becomes 255.

    size: both sides, in pixels, to which it is resized; colours: of MODES, to which it is converted, grey by the
    weights of ITU-R 601-2.
    InputError, which begins with ``where``, for a missing file, one of no known format, and pixels of unknown range.
    """
    from PIL import Image as Pillow
    from PIL import ImageOps, UnidentifiedImageError

    largest = 0
    named = where if str(path) in where else f"{where}: {path}"
    try:
        with Pillow.open(path, formats=FORMATS) as opened:
            frames = getattr(opened, "n_frames", 1)
            image = ImageOps.exif_transpose(opened)
            if image.mode in DEEP_GREY:
                deep = np.asarray(image).astype(np.uint32)
                largest = int(deep.max())
                image = Pillow.fromarray(((deep + OF_8_BITS // 2) // OF_8_BITS).astype(np.uint8))
            elif image.mode not in ("I", "F"):
                image = image.convert("L" if image.mode in GREY else "RGB")
            if colours is not None and image.mode in MODES.values():
                image = image.convert(MODES[colours])
    except FileNotFoundError as error:
        raise InputError(f"{named} is missing ({error.strerror}): give the path of an image") from None
    except Exception as error:  # a damaged file raises errors of many kinds
        why = "" if isinstance(error, UnidentifiedImageError) else f" ({error})"  # whose text is the path
        raise InputError(f"{named} is no image that can be read as one of {', '.join(FORMATS)}{why}") from None
    if image.mode not in MODES.values():
        raise InputError(f"{named} has pixels of 32 bits, whose range is not known: save it with 8 or 16 bits")
    if size is not None:
        image = image.resize((size, size), Pillow.Resampling.BILINEAR)
    return Image(np.asarray(image).reshape(image.height, image.width, -1), largest, frames)


def read_images(
    files: Iterable[tuple[str, str, Path]],
    size: int | None = None,
    colours: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Iterator[np.ndarray]:
    """Yield the pixels of images of one shape, uint8 [H, W, 1 or 3]; files: where each is named, its name and path.

    ``say`` gets a line for images of 16 bits, of several frames and of one colour.
    InputError for broken images, of which it names up to ten, one of another shape, and after the last one where all
    are equal.
    """
    first, equal, count, deep, largest = None, True, 0, 0, 0
    animated, plain = [], []
    broken: list[tuple[str, str]] = []
    for where, name, path in files:
        try:
            image = read_image(path, where, size, colours)
        except InputError as error:
            broken.append((name, str(error)))
        if len(broken) == MOST_NAMES:
            break
        if broken:  # no row is yielded any more
            continue
        pixels = image.pixels
        first = pixels if first is None else first
        if pixels.shape != first.shape:
            raise InputError(
                f"{where}: {name} is {_shape(pixels)} and the first {_shape(first)}: {_mend(pixels, first)}"
            )
        count, deep, largest = count + 1, deep + (image.largest > 0), max(largest, image.largest)
        equal = equal and np.array_equal(pixels, first)
        if image.frames > 1:
            animated.append(name)
        if (pixels == pixels[0, 0]).all():
            plain.append(name)
        yield pixels
    if broken:
        (_, first_fault), *others = broken
        also = f"; nor can be read: {', '.join(name for name, _ in others)}" if others else ""
        raise InputError(f"{first_fault}{also}")
    if count > 1 and equal:
        raise InputError(f"all {count:,} images are equal in every pixel: nothing can be learned, give others")
    if deep:
        say(f"16 bits: {deep:,} image{'s' * (deep > 1)} of 16 bits per pixel, of which 8 are kept: {largest:,}, the "
            f"largest value, is {(largest + OF_8_BITS // 2) // OF_8_BITS}")  # fmt: skip
    if animated:
        say(f"images of several frames, of which the first is taken: {counted(animated)}")
    if plain:
        say(f"warning: images of one colour in all pixels: {counted(plain)}")


def counted(names: Sequence[str]) -> str:
    """Return how many names there are, and the first of them: "2 (a.gif, b.gif)"."""
    rest = len(names) - MOST_NAMES
    return f"{len(names):,} ({', '.join(names[:MOST_NAMES])}{f' and {rest:,} more' if rest > 0 else ''})"


def _shape(pixels: np.ndarray) -> str:
    height, width, channels = pixels.shape
    return f"{height} x {width} in {COLOURS[channels]}"


def _mend(pixels: np.ndarray, first: np.ndarray) -> str:
    """Return which options give two images one shape."""
    size = ["resize them by --size PIXELS"] if pixels.shape[:2] != first.shape[:2] else []
    colours = ["convert them by --colours grey or --colours rgb"] if pixels.shape[2] != first.shape[2] else []
    return ", and ".join(size + colours)
