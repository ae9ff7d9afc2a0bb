"""Handwritten digits that come with scikit-learn: 1,797 images of 8 x 8 pixels in 10 classes.

Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning Repository, 1998
(its test part), as sklearn.datasets.load_digits reads it from a file of the package: no download.

A pixel counts the dark dots of a 4 x 4 field, 0 to 16, and is stored as uint8 with 255 for 16 (rounded to nearest).
Splits are stratified, 70 % train and 15 % each for validation and test, by the sha256 of the pixels, so that duplicates
stay in one split.
"""

from collections import Counter
from collections.abc import Callable

import numpy as np

from reread.preprocessing.raw import About, split_by_quota
from reread.preprocessing.raw_images import ImageRows
from reread.storage.prepared import SPLITS

SHARES = {"test": 0.15, "validation": 0.15}
HIGHEST = 16

ABOUT = About(
    classes=tuple("0123456789"),
    source="Optical Recognition of Handwritten Digits (Alpaydin, Kaynak, 1998), from sklearn.datasets.load_digits",
    licence="CC BY 4.0 (UCI Machine Learning Repository, https://doi.org/10.24432/C50P49)",
)


def rows(progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [1797, 8, 8, 1], labels int32 [1797], split uint8 [1797]."""
    # Imported here: scikit-learn takes 1.6 s to import.
    from sklearn.datasets import load_digits

    progress("reading scikit-learn's digits")
    digits = load_digits()
    images = ((digits.images.astype(np.int32) * 255 + HIGHEST // 2) // HIGHEST).astype(np.uint8)[..., None]
    labels = digits.target.astype(np.int32)
    keys = [image.tobytes().hex() for image in images]
    splits: dict[str, str] = {}
    for label in range(len(ABOUT.classes)):
        of_class = Counter(key for key, own in zip(keys, labels, strict=True) if own == label)
        splits |= split_by_quota(of_class, SHARES)
    split = np.array([SPLITS.index(splits[key]) for key in keys], dtype=np.uint8)
    return ImageRows(ABOUT, images, labels, split)
