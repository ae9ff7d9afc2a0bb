"""ChestMNIST at 224 x 224 pixels. Source: as chestmnist, of the same release."""

from functools import partial

from reread.preprocessing.download import Archive
from reread.preprocessing.sources.chestmnist import FILES, read_rows

ARCHIVES = (Archive("chestmnist_224.npz", f"{FILES}chestmnist_224.npz", "md5", "45bd33e6f06c3e8cdb481c74a89152aa"),)
rows = partial(read_rows, size=224)
