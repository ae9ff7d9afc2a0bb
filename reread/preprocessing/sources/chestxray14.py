"""ChestX-ray14: 112,120 frontal chest X-rays of 30,805 patients, with 14 findings mined from their reports.

Source: X. Wang, Y. Peng, L. Lu, Z. Lu, M. Bagheri, R. Summers, "ChestX-ray8: Hospital-scale Chest X-ray Database and
Benchmarks", CVPR 2017; https://nihcc.app.box.com/v/ChestXray-NIHCC. It is read from a mirror folder, in two forms:

    published  images_001.tar.gz to images_012.tar.gz (any of them), Data_Entry_2017_v2020.csv and, where they are
               there, BBox_List_2017.csv, train_val_list.txt and test_list.txt. Images of 1024 x 1024 pixels are reduced
               to SIZE x SIZE grey ones as they stream by; preprocessing can reduce them further
    subset     chestxray14_1089_64.npz (or .npz.xz): images uint8 [N, H, W], labels uint8 [N, 14], files, patients and
               label_names; and BBox_List_2017.csv where it is there

No patient is in two splits. The test split is the published list of 25,596 images. Validation is an eighth of the
patients of the published training list, chosen by the digest of the patient's number. Without lists, shares of the
images go to test and validation, whole patients in the order of that digest.

Shape legend: N images of SIZE x SIZE pixels, B boxes.
"""

import csv
import io
import lzma
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from reread.preprocessing.archives import DOWNLOAD_AGAIN, read_members
from reread.preprocessing.raw import About, held_out, split_by_quota
from reread.preprocessing.raw_images import ImageRows
from reread.preprocessing.reduction import read_all_grey
from reread.storage.errors import InputError
from reread.storage.prepared import SPLITS

FINDINGS = (
    "Atelectasis",
    "Cardiomegaly",
    "Effusion",
    "Infiltration",
    "Mass",
    "Nodule",
    "Pneumonia",
    "Pneumothorax",
    "Consolidation",
    "Edema",
    "Emphysema",
    "Fibrosis",
    "Pleural_Thickening",
    "Hernia",
)
SIZE = 256
# Boxes are in pixels of the published images.
PUBLISHED_SIZE = 1024
ONE_PATIENT_IN = 8
SHARES = {"test": 0.25, "validation": 0.15}
SUBSETS = ("chestxray14_1089_64.npz", "chestxray14_1089_64.npz.xz")
IMAGES = re.compile(r"images_\d\d\d?\.tar\.gz")
ENTRIES, BOXES = "Data_Entry_2017_v2020.csv", "BBox_List_2017.csv"
LISTS = {"train": "train_val_list.txt", "test": "test_list.txt"}
# BBox_List_2017.csv abbreviates one finding.
BOX_FINDINGS = {finding: finding for finding in FINDINGS} | {"Infiltrate": "Infiltration"}
NOTHING = "No Finding"
PNG = b"\x89PNG\r\n\x1a\n"
ABOUT = About(
    classes=FINDINGS,
    source="NIH ChestX-ray14 (Wang et al., CVPR 2017), https://nihcc.app.box.com/v/ChestXray-NIHCC",
    licence="unrestricted; the NIH Clinical Center asks for a link to its site, a citation and an acknowledgement",
    task="multi-label",
)


def find(mirror: Path | None) -> list[Path]:
    """Return the files of the mirror's folder that are read, one form of them; InputError where there is none."""
    folder = Path(mirror) if mirror else None
    where = folder or "FOLDER/chestxray14"
    if folder is None or not folder.is_dir():
        raise InputError(
            f"chestxray14 is read from a mirror: put its files in {where} and name FOLDER by REREAD_MIRROR "
            "(docs/results/chest-x-rays.md lists them)"
        )
    beside = [folder / BOXES] if (folder / BOXES).is_file() else []
    for subset in SUBSETS:
        if (folder / subset).is_file():
            return [folder / subset, *beside]
    archives = sorted(path for path in folder.iterdir() if IMAGES.fullmatch(path.name))
    if not archives or not (folder / ENTRIES).is_file():
        raise InputError(
            f"{folder} has neither {SUBSETS[0]} nor images_001.tar.gz and {ENTRIES}: put the published files there"
        )
    return [
        *archives,
        folder / ENTRIES,
        *beside,
        *(folder / name for name in LISTS.values() if (folder / name).is_file()),
    ]


def rows(files: Sequence[Path], progress: Callable[[str], None] = lambda line: None) -> ImageRows:
    """Return images uint8 [N, SIZE, SIZE, 1], memory-mapped, labels uint8 [N, 14], split, patients and boxes.

    The subset's images keep their size. InputError for files that are not as published.
    """
    by_name = {path.name: path for path in files}
    subset = next((by_name[name] for name in SUBSETS if name in by_name), None)
    if subset:
        progress(f"reading {subset}")
        names, images, labels, patients = read_subset(subset)
    else:
        entries = read_entries(by_name[ENTRIES])
        names, images = read_images([path for path in files if IMAGES.fullmatch(path.name)], progress)
        unknown = [name for name in names if name not in entries]
        if unknown:
            raise InputError(f"{by_name[ENTRIES]} has no row for {unknown[0]}: {DOWNLOAD_AGAIN}")
        patients = [entries[name][0] for name in names]
        labels = np.array([[finding in entries[name][1] for finding in FINDINGS] for name in names], np.uint8)
    lists = {split: read_list(by_name[name]) for split, name in LISTS.items() if name in by_name}
    split = choose_splits(names, patients, lists)
    boxes = read_boxes(by_name[BOXES], names) if BOXES in by_name else None
    return ImageRows(ABOUT, images, labels, split, patients, boxes)


def read_images(archives: Sequence[Path], progress: Callable[[str], None]) -> tuple[list[str], np.ndarray]:
    """Return the names of the images in ``archives`` and the images, uint8 [N, SIZE, SIZE, 1].

    They pass through a file without a name in the folder of temporary files.
    """
    names: list[str] = []
    # The memory map below holds the file.
    with tempfile.TemporaryFile() as file:
        for path in archives:
            progress(f"reading {path}")
            for name, image in read_all_grey(images_of(path), SIZE):
                names.append(name)
                file.write(image.data)
        if not names:
            raise InputError(f"{archives[0]} has no .png file: {DOWNLOAD_AGAIN}")
        repeated = [name for name, count in Counter(names).items() if count > 1]
        if repeated:
            raise InputError(f"{repeated[0]} is in two archives of {archives[0].parent}: {DOWNLOAD_AGAIN}")
        file.flush()
        return names, np.memmap(file, np.uint8, "r", shape=(len(names), SIZE, SIZE, 1))


def images_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each image; InputError for a file of another format, which Pillow would decode too."""
    for name, content in read_members(path, lambda name: name.endswith(".png")):
        if not content.startswith(PNG):
            raise InputError(f"{path}: {name} is no PNG image: {DOWNLOAD_AGAIN}")
        yield PurePosixPath(name).name, content


def read_table(path: Path, *columns: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file; InputError where it has not all of ``columns`` or no row."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file))
    missing = [column for column in columns if not rows or rows[0].get(column) is None]
    if missing:
        raise InputError(f"{path} has no column '{missing[0]}': {DOWNLOAD_AGAIN}")
    return rows


def read_entries(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Return each image's patient and findings."""
    entries = {}
    for row in read_table(path, "Image Index", "Finding Labels", "Patient ID"):
        findings = frozenset(row["Finding Labels"].split("|")) - {NOTHING}
        if findings - set(FINDINGS):
            raise InputError(f"{path}: {row['Image Index']} has the unknown finding '{min(findings - set(FINDINGS))}'")
        entries[row["Image Index"]] = (row["Patient ID"], findings)
    return entries


def read_subset(path: Path) -> tuple[list[str], np.ndarray, np.ndarray, list[str]]:
    """Return names, images uint8 [N, H, W, 1], labels uint8 [N, 14] and patients of the subset's .npz or .npz.xz."""
    try:
        content = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            images, labels, files, patients, names = (
                arrays[name] for name in ("images", "labels", "files", "patients", "label_names")
            )
    except (lzma.LZMAError, ValueError, KeyError, OSError) as error:
        raise InputError(f"{path} is not the subset's .npz ({error}): copy it again") from None
    if tuple(names.tolist()) != FINDINGS or images.ndim != 3:
        raise InputError(f"{path} has other labels or shapes than the subset: copy it again")
    return files.tolist(), images[..., None], labels, [str(patient) for patient in patients.tolist()]


def read_list(path: Path) -> frozenset[str]:
    """Return the image names of one of the published lists."""
    return frozenset(path.read_text(encoding="utf-8").split())


def choose_splits(names: Sequence[str], patients: Sequence[str], lists: Mapping[str, frozenset[str]]) -> np.ndarray:
    """Return the split of each image, uint8 [N], by the published lists or, without both, by patient."""
    if set(lists) != set(LISTS):
        splits = split_by_quota(Counter(patients), SHARES)
        return np.array([SPLITS.index(splits[patient]) for patient in patients], np.uint8)
    numbers = []
    for name, patient in zip(names, patients, strict=True):
        if name in lists["test"]:
            numbers.append(SPLITS.index("test"))
        elif name in lists["train"]:
            numbers.append(int(held_out(patient.encode(), ONE_PATIENT_IN)))
        else:
            raise InputError(f"{name} is in none of {', '.join(LISTS.values())}: {DOWNLOAD_AGAIN}")
    return np.array(numbers, np.uint8)


def read_boxes(path: Path, names: Sequence[str]) -> np.ndarray:
    """Return the boxes of the images ``names``, float64 [B, 6]: row, class, left, top, width, height as shares."""
    places = {name: row for row, name in enumerate(names)}
    boxes = []
    with open(path, encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        next(lines, None)  # Its head has fewer names than columns.
        for line in lines:
            if len(line) < 6 or line[1] not in BOX_FINDINGS:
                raise InputError(f"{path} has a line that is no box ({','.join(line)[:60]}): {DOWNLOAD_AGAIN}")
            if line[0] in places:
                try:
                    corner = np.array(line[2:6], np.float64) / PUBLISHED_SIZE
                except ValueError:
                    raise InputError(f"{path}: the box of {line[0]} is no four numbers: {DOWNLOAD_AGAIN}") from None
                corner[:2] = corner[:2].clip(0, 1)
                corner[2:] = np.minimum(corner[2:], 1 - corner[:2])
                boxes.append([places[line[0]], FINDINGS.index(BOX_FINDINGS[line[1]]), *corner])
    return np.array(boxes, np.float64).reshape(-1, 6)
