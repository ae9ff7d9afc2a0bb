"""ChestMNIST: ChestX-ray14 at 28 x 28 pixels, with its own splits.

Source: J. Yang et al., "MedMNIST v2: A large-scale lightweight benchmark for 2D and 3D biomedical image
classification", Scientific Data 10, 2023; https://zenodo.org/records/10519652. Its chestmnist_64, _128 and _224 are the
same images in larger files. The splits are the published ones, which keep a patient in one; patients are not named, so
there are no groups.

Shape legend: N = 112,120 images of S x S pixels.
"""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from reread.preprocessing.archives import check_count
from reread.preprocessing.download import Archive
from reread.preprocessing.npz import read_arrays
from reread.preprocessing.raw import About
from reread.preprocessing.raw_images import ImageRows, parts
from reread.storage.errors import InputError

FILES = "https://zenodo.org/records/10519652/files/"
ARCHIVES = (Archive("chestmnist.npz", f"{FILES}chestmnist.npz", "md5", "02c8a6516a18b556561a56cbdd36c4a8"),)
ROWS = (78_468, 11_219, 22_433)
ABOUT = About(
    classes=(
        "atelectasis",
        "cardiomegaly",
        "effusion",
        "infiltration",
        "mass",
        "nodule",
        "pneumonia",
        "pneumothorax",
        "consolidation",
        "edema",
        "emphysema",
        "fibrosis",
        "pleural",
        "hernia",
    ),
    source="ChestMNIST of MedMNIST v2 (Yang et al., 2023), https://zenodo.org/records/10519652",
    licence="CC BY 4.0",
    task="multi-label",
)


def read_rows(archives: Sequence[Path], progress: Callable[[str], None] = lambda line: None, *, size: int) -> ImageRows:
    """Return images uint8 [N, size, size, 1], memory-mapped, labels uint8 [N, 14] and the published splits.

    InputError for a file that is not as published, or has images of another size.
    """
    (path,) = archives
    progress(f"reading {path}")
    names = [f"{split}_{what}" for what in ("images", "labels") for split in ("train", "val", "test")]
    arrays = read_arrays(path, names)
    images, labels = arrays[:3], arrays[3:]
    for name, expected, pixels, findings in zip(names, ROWS, images, labels, strict=False):
        check_count(path, f"rows of {name}", len(pixels), expected)
        if pixels.shape[1:] != (size, size) or findings.shape != (expected, len(ABOUT.classes)):
            raise InputError(
                f"{path}: {name} has the shape {list(pixels.shape)} with labels {list(findings.shape)}, the published "
                f"one has {size} x {size} pixels and {len(ABOUT.classes)} labels: download the archive again"
            )
    with tempfile.TemporaryFile() as file:
        for split in images:
            for part in parts(split):
                file.write(np.ascontiguousarray(split[part]).data)
        file.flush()
        joined = np.memmap(file, np.uint8, "r", shape=(sum(ROWS), size, size, 1))
    split = np.repeat(np.arange(3, dtype=np.uint8), ROWS)
    return ImageRows(ABOUT, joined, np.concatenate(labels), split)


rows = partial(read_rows, size=28)
