"""ChestMNIST at 128 x 128 pixels. Source: as chestmnist, of the same release."""

from functools import partial

from reread.preprocessing.download import Archive
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_128.npz", f"{FILES}chestmnist_128.npz", "md5", "db107e5590b27930b62dbaf558aebee3"),)
rows = partial(read_rows, size=128)
