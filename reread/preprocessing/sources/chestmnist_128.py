"""ChestMNIST at 128 x 128 pixels. Source: as chestmnist, of the same release."""

from collections.abc import Callable, Sequence
from pathlib import Path

from reread.preprocessing.download import Archive
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_128.npz", f"{FILES}chestmnist_128.npz", "md5", "db107e5590b27930b62dbaf558aebee3"),)
SIZE = 128


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [N, 128, 128, 1], memory-mapped, labels uint8 [N, 14] and the published splits."""
    return read_rows(archives, progress, SIZE)
