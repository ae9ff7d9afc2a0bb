"""affNIST's test split, and MNIST's digits anywhere in 40 x 40 pixels for training.

Source: T. Tieleman, "affNIST", 2013, https://www.cs.toronto.edu/~tijmen/affNIST: test.mat of the transformed set, in
Matlab's format of version 5. Its structure ``affNISTdata`` has ``image``, uint8 [1600, N], a column for each image of
40 x 40 pixels, row by row, and ``label_int``, [1, N]. No checksum is published.

As in Sabour, Frosst and Hinton 2017, section 5.1, a network learns from MNIST's digits that are only moved: centred for
training, which moves them by ``augmentation: [{name: shift, pixels: 6, padding: darkest}]``, at random places in
validation.
"""

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from reread.preprocessing.archives import DOWNLOAD_AGAIN
from reread.preprocessing.download import Archive
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.sources import mnist
from reread.preprocessing.sources.affine_mnist import MARGIN, moved
from reread.storage.errors import InputError
from reread.storage.prepared import SPLITS

MEMBER = "test.mat"
LARGEST_MEMBER = 2 << 30
TEST = Archive(
    "test.mat.zip", "https://www.cs.toronto.edu/~tijmen/affNIST/32x/transformed/test.mat.zip", "sha256", checksum=""
)
ARCHIVES = (*mnist.ARCHIVES, TEST)
SIDE = 28 + 2 * MARGIN
SEED = 0
ABOUT = replace(
    mnist.ABOUT,
    source="test: affNIST (Tieleman, 2013), https://www.cs.toronto.edu/~tijmen/affNIST; the rest: MNIST (LeCun, "
    "Cortes, Burges, 1998) in 40 x 40 pixels",
    licence="affNIST: free for any use, as its page states; MNIST: CC BY-SA 3.0 as Keras' documentation states",
)


def rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [N, 40, 40, 1], labels int32 [N], split uint8 [N]. InputError as mnist and read_test."""
    *of_mnist, path = archives
    digits = mnist.rows(of_mnist, progress)
    progress(f"reading {path}")
    test_images, test_labels = read_test(path)
    kept = digits.split != SPLITS.index("test")
    images = np.concatenate([moved(digits, np.random.default_rng(SEED))[kept], test_images])
    labels = np.concatenate([digits.labels[kept], test_labels])
    split = np.concatenate([digits.split[kept], np.full(len(test_labels), SPLITS.index("test"), np.uint8)])
    return ImageRows(ABOUT, images, labels, split)


def read_test(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Read test.mat.zip: images uint8 [N, 40, 40, 1] and labels int32 [N].

    InputError for an archive that is damaged or has no such file, and for arrays of another shape or type.
    """
    # Imported here: it takes 0.3 s to import.
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo(MEMBER).file_size > LARGEST_MEMBER:
                raise InputError(f"{path}: {MEMBER} is larger than the published one: {DOWNLOAD_AGAIN}")
            content = io.BytesIO(archive.read(MEMBER))
        data = loadmat(content, simplify_cells=True)["affNISTdata"]
        columns, labels = np.asarray(data["image"]), np.asarray(data["label_int"]).ravel()
    except FileNotFoundError:
        raise InputError(f"{path} is missing: {DOWNLOAD_AGAIN}") from None
    except (
        zipfile.BadZipFile,
        KeyError,
        TypeError,
        ValueError,
        IndexError,
        NotImplementedError,
        MatReadError,
    ) as error:
        raise InputError(f"{path} is not affNIST's {MEMBER} ({error}): {DOWNLOAD_AGAIN}") from None
    if columns.dtype != np.uint8 or columns.shape != (SIDE * SIDE, len(labels)):
        raise InputError(
            f"{path}: image is {columns.dtype} {list(columns.shape)} for {len(labels)} labels, and affNIST's is uint8 "
            f"[{SIDE * SIDE}, N]: {DOWNLOAD_AGAIN}"
        )
    if not np.isin(labels, np.arange(10)).all():
        raise InputError(f"{path}: label_int has other values than 0 to 9: {DOWNLOAD_AGAIN}")
    return np.ascontiguousarray(columns.T).reshape(-1, SIDE, SIDE, 1), labels.astype(np.int32)
