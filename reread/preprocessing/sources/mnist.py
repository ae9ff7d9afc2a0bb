"""MNIST: 70,000 handwritten digits of 28 x 28 pixels.

Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", 1998; four idx.gz files. The test
split is the published one; validation is a tenth of the published training split, chosen by the pixels.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from reread.preprocessing.archives import check_count, read_idx
from reread.preprocessing.download import Archive
from reread.preprocessing.raw import About, published_splits
from reread.preprocessing.raw_images import ImageRows

MIRROR = "https://ossci-datasets.s3.amazonaws.com/mnist/"
ARCHIVES = tuple(
    Archive(name, MIRROR + name, "md5", checksum, data_set="mnist")
    for name, checksum in (
        ("train-images-idx3-ubyte.gz", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        ("train-labels-idx1-ubyte.gz", "d53e105ee54ea40749a09fcbcd1e9432"),
        ("t10k-images-idx3-ubyte.gz", "9fb629c4189551a2d022fa330f9573f3"),
        ("t10k-labels-idx1-ubyte.gz", "ec29112dd5afa0611ce80d1b7f02629c"),
    )
)
SHAPES = ((60_000, 28, 28), (60_000,), (10_000, 28, 28), (10_000,))
# The digest of the published content, however its archive is packed.
VERSION = "5b021817e7883aefcf338943072b47499f7715c9944c6ab4627a8e351ddf66a8"
ABOUT = About(
    classes=tuple("0123456789"),
    source="The MNIST database of handwritten digits (LeCun, Cortes, Burges, 1998), http://yann.lecun.com/exdb/mnist/",
    licence="CC BY-SA 3.0 as Keras' documentation states; the MNIST page states none",
)


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [70000, 28, 28, 1], labels int32 [70000], split uint8 [70000].

    InputError as archives.read_idx.
    """
    arrays = []
    for path, shape in zip(archives, SHAPES, strict=True):
        progress(f"reading {path}")
        array = read_idx(path)
        check_count(
            path, f"values in {len(shape)} axes", array.size if array.ndim == len(shape) else 0, math.prod(shape)
        )
        arrays.append(array.reshape(shape))
    train, train_labels, test, test_labels = arrays
    images = np.concatenate([train, test])[..., None]
    labels = np.concatenate([train_labels, test_labels]).astype(np.int32)
    return ImageRows(ABOUT, images, labels, published_splits(images, len(train)))
