"""Raw images: data/NAME/images.npy with labels.npy, split.npy and, where they are known, groups.npy and boxes.npy.

Images are read and written a few at a time, so that memory does not grow with their number.

Shape legend: N rows, H x W x C an image, K classes, B boxes.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from reread import goals
from reread.kinds import RawRows
from reread.preprocessing.manifest import STORED, DataSetEntry, check_corpus
from reread.preprocessing.raw import About, number_groups
from reread.storage.errors import InputError
from reread.storage.files import canonical_json
from reread.storage.prepared import SPLITS

IMAGES, LABELS, SPLIT, GROUPS, BOXES = "images.npy", "labels.npy", "split.npy", "groups.npy", "boxes.npy"
BOX_COLUMNS = 6
BYTES_AT_A_TIME = 1 << 24


@dataclass(frozen=True)
class ImageRows:
    """The images that a source makes.

    images uint8 [N, H, W, C]; labels int32 [N] or uint8 [N, K]; split uint8 [N], 0 to 2 in the order of SPLITS; groups:
    N names (patients, for example), rows with the same name not being independent of one another. boxes: where classes
    are to be seen, float64 [B, 6]: row, class, left, top, width and height, the last four as shares of the image.
    """

    about: About
    images: np.ndarray
    labels: np.ndarray
    split: np.ndarray
    groups: Sequence[str] | np.ndarray | None = None
    boxes: np.ndarray | None = None
    kind: ClassVar[str] = "image"


@dataclass(frozen=True)
class ImageDataSet:
    """An opened image data set, memory-mapped, its bytes checked against the manifest.

    images uint8 [N, H, W, C]; labels int32 [N] (single-label) or uint8 [N, K] (multi-label);
    split uint8 [N]: 0 train, 1 validation, 2 test (the order of SPLITS); group_names str [N] or None; boxes as
    ImageRows has them, or None.
    """

    name: str
    directory: Path
    entry: DataSetEntry
    images: np.ndarray = field(repr=False)
    labels: np.ndarray = field(repr=False)
    split: np.ndarray = field(repr=False)
    group_names: np.ndarray | None = field(repr=False, default=None)
    boxes: np.ndarray | None = field(repr=False, default=None)

    @classmethod
    def open(cls, name: str, directory: Path, entry: DataSetEntry) -> "ImageDataSet":
        """Open the files of data/NAME; InputError for arrays that do not fit this class, or all of one class."""
        images, labels, split = (load_array(directory / file) for file in (IMAGES, LABELS, SPLIT))
        check_images(images, labels, split, entry.task, len(entry.classes), directory)
        check_corpus(labels, entry, directory)
        groups = load_array(directory / GROUPS) if entry.groups == STORED else None
        boxes = load_array(directory / BOXES) if BOXES in entry.files else None
        return cls(name, directory, entry, images, labels, split, groups, boxes)

    def groups(self) -> tuple[np.ndarray, list[str]] | None:
        """Return each row's group as int64 [N] and the groups' names; None where no groups are known."""
        return None if self.group_names is None else number_groups(self.group_names.tolist())

    def read(self, rows: Sequence[int]) -> np.ndarray:
        """Return the images of ``rows``, uint8 [n, H, W, C], in the order given; consecutive ones memory-mapped."""
        numbers = np.asarray(rows, np.int64)
        if len(numbers) and np.array_equal(numbers, np.arange(numbers[0], numbers[0] + len(numbers))):
            return self.images[numbers[0] : numbers[0] + len(numbers)]
        return np.asarray(self.images[numbers])

    def changes(self, rows: ImageRows) -> str:
        """Say how many rows there were and are."""
        return f"rows {len(self.images)} -> {len(rows.images)}"


def load_array(path: Path) -> np.ndarray:
    """Open an .npy file memory-mapped; InputError where it is not one, or holds pickled objects."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise InputError(f"{path} is not a plain .npy array ({error})") from None


def check_images(
    images: np.ndarray, labels: np.ndarray, split: np.ndarray, task: str, classes: int, where: Path
) -> None:
    """Raise InputError where a shape, dtype, label or split does not fit ImageDataSet."""
    rows = len(images)
    if goals.beyond_labels(task):
        goals.refuse_targets(labels, rows, task, classes, where / LABELS)
        labels, task, classes = np.zeros(rows, np.int32), "single-label", 1
    shape, dtype, highest = (
        ((rows,), np.int32, classes - 1) if task == "single-label" else ((rows, classes), np.uint8, 1)
    )
    if images.dtype != np.uint8 or images.ndim != 4:
        raise InputError(f"{where / IMAGES}: images are uint8 [N, H, W, C], got {images.dtype} {list(images.shape)}")
    if labels.dtype != dtype or labels.shape != shape:
        raise InputError(
            f"{where / LABELS}: labels are {np.dtype(dtype)} {list(shape)}, got {labels.dtype} {list(labels.shape)}"
        )
    if split.dtype != np.uint8 or split.shape != (rows,):
        raise InputError(f"{where / SPLIT}: splits are uint8 [{rows}], got {split.dtype} {list(split.shape)}")
    if rows and (labels.min() < 0 or labels.max() > highest):
        raise InputError(f"{where / LABELS}: a label is outside 0 to {highest}")
    if rows and split.max() >= len(SPLITS):
        raise InputError(f"{where / SPLIT}: a split is outside 0 to {len(SPLITS) - 1} ({', '.join(SPLITS)})")


def with_stored_types(rows: ImageRows) -> ImageRows:
    """Return the rows with labels and splits of any integer type as they are stored; InputError for other values."""
    stored: dict[str, Any] = {}
    if goals.beyond_labels(rows.about.task):
        return replace(rows, split=np.asarray(rows.split, np.uint8))
    for name, array, dtype in (
        ("labels", rows.labels, np.int32 if rows.about.task == "single-label" else np.uint8),
        ("split", rows.split, np.uint8),
    ):
        given = np.asarray(array)
        if given.dtype.kind not in "iub":
            raise InputError(f"{name} are {given.dtype}: they must be whole numbers")
        limits = np.iinfo(dtype)
        if given.size and (given.min() < limits.min or given.max() > limits.max):
            raise InputError(f"{name} go from {given.min()} to {given.max()}: {np.dtype(dtype)} is expected")
        stored[name] = given.astype(dtype, copy=False)
    return replace(rows, **stored)


def check_boxes(boxes: np.ndarray, rows: int, classes: int, where: str) -> None:
    """Raise InputError where boxes do not fit ImageRows."""
    if boxes.dtype != np.float64 or boxes.ndim != 2 or boxes.shape[1] != BOX_COLUMNS:
        raise InputError(f"{where}: boxes are float64 [B, {BOX_COLUMNS}], got {boxes.dtype} {list(boxes.shape)}")
    numbers, corners = boxes[:, :2], boxes[:, 2:]
    if (numbers < 0).any() or (numbers >= (rows, classes)).any() or (numbers != np.floor(numbers)).any():
        raise InputError(f"{where}: a box is of row or class {numbers.max(axis=0).tolist()}, which there is not")
    if not ((corners >= 0) & (corners <= 1)).all() or (corners[:, :2] + corners[:, 2:] > 1 + 1e-9).any():
        raise InputError(f"{where}: a box is outside of its image: left, top, width and height are shares of it")


def parts(images: np.ndarray) -> Iterator[slice]:
    """Yield the rows that are read or written at a time."""
    rows = max(1, BYTES_AT_A_TIME // max(1, images[:1].nbytes))
    return (slice(start, start + rows) for start in range(0, len(images), rows))


def write_images(path: Path, shape: tuple[int, ...], images: Iterator[np.ndarray]) -> None:
    """Write parts of images, uint8 [N, H, W, C] together, as ``np.save`` writes the whole."""
    with open(path, "wb") as file:
        header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.uint8)), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for part in images:
            file.write(np.ascontiguousarray(part).data)


def write(name: str, directory: Path, rows: ImageRows) -> RawRows:
    """Write the arrays into ``directory``, by split and then by the sha256 of the row, which has its boxes too.

    InputError for wrong shapes, dtypes, labels, splits, groups or boxes.
    """
    rows = with_stored_types(rows)
    about, groups = rows.about, None if rows.groups is None else np.asarray(rows.groups).astype(str)
    check_images(rows.images, rows.labels, rows.split, about.task, len(about.classes), Path(name))
    if groups is not None and groups.shape != (len(rows.images),):
        raise InputError(f"{name}: groups are {len(rows.images)} names, got {list(groups.shape)}")
    shape = canonical_json(list(rows.images.shape[1:])).encode()
    digests = [
        hashlib.sha256(shape + split.tobytes() + label.astype("<i4").tobytes() + image.tobytes()).digest()
        for image, label, split in zip(np.asarray(rows.images), rows.labels, rows.split, strict=True)
    ]
    if goals.beyond_labels(about.task):
        digests = [
            hashlib.sha256(digest + target.tobytes()).digest()
            for digest, target in zip(digests, rows.labels, strict=True)
        ]
    if groups is not None:
        digests = [
            hashlib.sha256(digest + group.encode()).digest() for digest, group in zip(digests, groups, strict=True)
        ]
    if rows.boxes is not None:
        check_boxes(rows.boxes, len(rows.images), len(about.classes), name)
        for box in rows.boxes[np.lexsort(rows.boxes.T)]:
            digests[int(box[0])] = hashlib.sha256(digests[int(box[0])] + box[1:].astype("<f8").tobytes()).digest()
    order = sorted(range(len(digests)), key=lambda row: (rows.split[row], digests[row]))
    arrays = {LABELS: rows.labels, SPLIT: rows.split}
    if groups is not None:
        arrays[GROUPS] = groups
    arrays = {file: np.ascontiguousarray(array[order]) for file, array in arrays.items()}
    if rows.boxes is not None:
        places = np.empty(len(order))
        places[order] = np.arange(len(order))
        arrays[BOXES] = move_boxes(rows.boxes, places)
    for file, array in arrays.items():
        np.save(directory / file, array, allow_pickle=False)
    write_images(directory / IMAGES, rows.images.shape, (rows.images[order[part]] for part in parts(rows.images)))
    # A plain view: each row of a memmap is a slower object.
    images = np.asarray(load_array(directory / IMAGES))
    return RawRows(
        digests=[digests[row] for row in order],
        labels=arrays[LABELS],
        split=arrays[SPLIT],
        groups=None if groups is None else arrays[GROUPS].tolist(),
        contents={
            "exact": map(np.ndarray.tobytes, images),
            "normalised": map(normalised_pixels, images),
        },
        order=order,
    )


def move_boxes(boxes: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the boxes of rows that are now at ``places`` (int [N], -1 for one that is left out), in one order."""
    moved = boxes.copy()
    moved[:, 0] = places[boxes[:, 0].astype(np.int64)]
    moved = moved[moved[:, 0] >= 0]
    return moved[np.lexsort(moved.T[::-1])]


def normalised_pixels(image: np.ndarray) -> bytes:
    """Return the pixels of a uint8 image stretched to 0..255, so that brighter or flatter copies are equal."""
    low, high = int(image.min()), int(image.max())
    return ((image.astype(np.int32) - low) * 255 // max(high - low, 1)).astype(np.uint8).tobytes()
