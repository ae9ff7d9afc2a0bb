"""ChestMNIST at 64 x 64 pixels. Source: as chestmnist, of the same release."""

from collections.abc import Callable, Sequence
from pathlib import Path

from reread.preprocessing.download import Archive
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_64.npz", f"{FILES}chestmnist_64.npz", "md5", "9de6cd0b934ebb5b7426cfba5efbae16"),)
SIZE = 64


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [N, 64, 64, 1], memory-mapped, labels uint8 [N, 14] and the published splits."""
    return read_rows(archives, progress, SIZE)
