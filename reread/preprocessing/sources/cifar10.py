"""CIFAR-10: 60,000 colour images of 32 x 32 pixels in 10 classes.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; cifar-10-binary.tar.gz. A record
is one label byte and 3,072 pixel bytes: the red, green and blue plane, each row by row. The test split is the published
one; validation is a tenth of the published training split, chosen by the pixels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reread.preprocessing.archives import check_count, read_members
from reread.preprocessing.download import Archive
from reread.preprocessing.raw import About, published_splits
from reread.preprocessing.raw_images import ImageRows

ARCHIVES = (
    Archive(
        "cifar-10-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "md5",
        "c32a1d4ab5d03f1284b67883e8d87530",
    ),
)
FOLDER = "cifar-10-batches-bin"
BATCHES = tuple(f"{FOLDER}/data_batch_{number}.bin" for number in range(1, 6)) + (f"{FOLDER}/test_batch.bin",)
RECORDS = 10_000
RECORD_BYTES = 1 + 3 * 32 * 32
# The digest of the published content, however its archive is packed.
VERSION = "ddf2d77772a33ff879d83ce6608cb2243dfe0e0d4262ac803649ff3086c81e3f"
ABOUT = About(
    classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    source="CIFAR-10 (Krizhevsky, 2009), https://www.cs.toronto.edu/~kriz/cifar.html",
    licence="none stated; the author asks to cite the report",
)


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [60000, 32, 32, 3], labels int32 [60000], split uint8 [60000]. InputError as read_members."""
    (path,) = archives
    progress(f"reading {path}")
    batches = dict(read_members(path, BATCHES.__contains__))
    check_count(path, "batches", len(batches), len(BATCHES))
    for name, content in batches.items():
        check_count(path, f"bytes in {name}", len(content), RECORDS * RECORD_BYTES)
    joined = b"".join(batches[name] for name in BATCHES)
    records = np.frombuffer(joined, dtype=np.uint8).reshape(-1, RECORD_BYTES)
    images = np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    return ImageRows(ABOUT, images, records[:, 0].astype(np.int32), published_splits(images, 5 * RECORDS))
