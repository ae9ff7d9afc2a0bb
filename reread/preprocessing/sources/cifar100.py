"""CIFAR-100: 60,000 colour images of 32 x 32 pixels in 100 classes, the fine labels.

Source: A. Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009; cifar-100-binary.tar.gz. A record
is one byte with the coarse label, one with the fine label, and 3,072 pixel bytes as in CIFAR-10. The archive names the
classes. The test split is the published one; validation is a tenth of the published training split, chosen by the
pixels.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reread.preprocessing.archives import DOWNLOAD_AGAIN, check_count, read_members
from reread.preprocessing.download import Archive
from reread.preprocessing.raw import About, published_splits
from reread.preprocessing.raw_images import ImageRows
from reread.storage.errors import InputError

ARCHIVES = (
    Archive(
        "cifar-100-binary.tar.gz",
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        "md5",
        "03b5dce01913d631647c71ecec9e9cb8",
    ),
)
FOLDER = "cifar-100-binary"
NAMES, TRAIN, TEST = (f"{FOLDER}/{name}" for name in ("fine_label_names.txt", "train.bin", "test.bin"))
RECORDS = {TRAIN: 50_000, TEST: 10_000}
LABEL_BYTES = 2  # the coarse and the fine label
RECORD_BYTES = LABEL_BYTES + 3 * 32 * 32
CLASSES = 100


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [60000, 32, 32, 3], labels int32 [60000], split uint8 [60000]. InputError as read_members."""
    (path,) = archives
    progress(f"reading {path}")
    members = dict(read_members(path, {NAMES, *RECORDS}.__contains__))
    for name in (NAMES, *RECORDS):
        if name not in members:
            raise InputError(f"{path} has no member '{name}': {DOWNLOAD_AGAIN}")
    names = members[NAMES].decode("ascii", "replace").split()
    check_count(path, f"names in {NAMES}", len(set(names)), CLASSES)
    for name, records in RECORDS.items():
        check_count(path, f"bytes in {name}", len(members[name]), records * RECORD_BYTES)
    joined = np.frombuffer(members[TRAIN] + members[TEST], dtype=np.uint8).reshape(-1, RECORD_BYTES)
    images = np.ascontiguousarray(joined[:, LABEL_BYTES:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    about = About(
        classes=tuple(names),
        source="CIFAR-100 (Krizhevsky, 2009), https://www.cs.toronto.edu/~kriz/cifar.html",
        licence="none stated; the author asks to cite the report",
    )
    labels = joined[:, LABEL_BYTES - 1].astype(np.int32)
    return ImageRows(about, images, labels, published_splits(images, RECORDS[TRAIN]))
