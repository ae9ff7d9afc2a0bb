"""ChestMNIST at 224 x 224 pixels. Source: as chestmnist, of the same release."""

from collections.abc import Callable, Sequence
from pathlib import Path

from reread.preprocessing.download import Archive
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_224.npz", f"{FILES}chestmnist_224.npz", "md5", "45bd33e6f06c3e8cdb481c74a89152aa"),)
SIZE = 224


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [N, 224, 224, 1], memory-mapped, labels uint8 [N, 14] and the published splits."""
    return read_rows(archives, progress, SIZE)
