"""ChestMNIST at 64 x 64 pixels. Source: as chestmnist, of the same release."""

from functools import partial

from reread.preprocessing.download import Archive
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_64.npz", f"{FILES}chestmnist_64.npz", "md5", "9de6cd0b934ebb5b7426cfba5efbae16"),)
rows = partial(read_rows, size=64)
