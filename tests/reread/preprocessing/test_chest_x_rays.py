"""ChestX-ray14 and ChestMNIST in small files of their published formats, and memory at their true number of images."""

import io
import lzma
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from reread.preprocessing.ingest import ingest
from reread.preprocessing.manifest import open_data_set
from reread.preprocessing.prepare import prepare
from reread.preprocessing.raw import add_data_set
from reread.preprocessing.reduction import reduce_images
from reread.preprocessing.sources import chestmnist, chestxray14
from reread.storage.errors import InputError
from reread.storage.prepared import open_prepared
from reread.storage.source import ROOT
from tests.reread.preprocessing.packing import pack

PATIENTS = 12
PICTURES = {f"{patient:08d}_{visit:03d}.png": str(patient) for patient in range(PATIENTS) for visit in range(3)}
FINDINGS = chestxray14.FINDINGS


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty project with published images of 16 x 16 pixels that are stored as 8 x 8."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(chestxray14, "SIZE", 8)


def pixels() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {name: generator.integers(0, 256, (16, 16), np.uint8) for name in PICTURES}


def png(image: np.ndarray, mode: str = "L") -> bytes:
    """A PNG of the mode: RGBA, as some of the published ones are, has three equal channels."""
    buffer = io.BytesIO()
    Image.fromarray(image).convert(mode).save(buffer, "PNG")
    return buffer.getvalue()


def findings_of(name: str) -> str:
    number = list(PICTURES).index(name)
    return "No Finding" if number % 4 == 0 else "|".join(sorted({FINDINGS[number % 14], FINDINGS[number // 3]}))


BOX_HEAD = "Image Index,Finding Label,Bbox [x,y,w,h],,,\n"


@pytest.fixture
def mirror(tmp_path):
    """Two archives, the entries and the boxes, without lists."""
    folder = tmp_path / "mirror/chestxray14"
    folder.mkdir(parents=True)
    images = pixels()
    names = list(PICTURES)
    for number, part in enumerate((names[:20], names[20:]), 1):
        modes = ["RGBA" if index == 3 else "L" for index in range(len(part))]
        members = {f"images/{name}": png(images[name], mode) for name, mode in zip(part, modes, strict=True)}
        pack(folder / f"images_{number:03d}.tar.gz", *members.items())
    lines = [f"{name},{findings_of(name)},0,{patient},57,M,PA" for name, patient in PICTURES.items()]
    head = "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position"
    (folder / chestxray14.ENTRIES).write_text("\n".join([head, *lines]) + "\n")
    boxes = [
        f"{names[1]},Infiltrate,256.0,512.0,512.0,128.0",
        f"{names[2]},Mass,0,0,1024,1024",
        "elsewhere.png,Mass,1,2,3,4",
    ]
    (folder / chestxray14.BOXES).write_text(BOX_HEAD + "\n".join(boxes) + "\n")
    return folder


def by_pixels(images: np.ndarray) -> dict[bytes, int]:
    return {image.tobytes(): row for row, image in enumerate(images)}


def test_the_published_archives_become_reduced_images_split_by_patient(mirror):
    entry = ingest("chestxray14", mirror=mirror.parent)
    assert (entry.task, entry.rows, entry.groups, len(entry.classes)) == ("multi-label", 36, "stored", 14)
    data = open_data_set("chestxray14")
    assert data.images.shape == (36, 8, 8, 1)
    places = by_pixels(data.images)
    for name, image in pixels().items():
        reduced = image.reshape(8, 2, 8, 2).mean((1, 3))
        stored = next(
            key for key in places if np.abs(np.frombuffer(key, np.uint8).reshape(8, 8) - reduced).max() <= 0.5
        )
        row = places[stored]
        assert data.group_names[row] == PICTURES[name]
        assert {FINDINGS[number] for number in np.flatnonzero(data.labels[row])} == set(
            findings_of(name).split("|")
        ) - {"No Finding"}
    of_patient = {patient: set(data.split[data.group_names == patient].tolist()) for patient in PICTURES.values()}
    assert all(len(splits) == 1 for splits in of_patient.values()) and min(entry.splits.values()) > 0


def test_boxes_follow_their_images_into_the_prepared_arrays(mirror):
    ingest("chestxray14", mirror=mirror.parent)
    data = open_data_set("chestxray14")
    prepared = open_prepared(prepare("chestxray14", {"size": 4}))
    assert prepared.arrays["images"].shape == (36, 4, 4, 1)
    boxes = prepared.arrays["boxes"]
    first, second = sorted(boxes.tolist(), key=lambda box: box[1])
    assert first[1:] == [FINDINGS.index("Infiltration"), 0.25, 0.5, 0.5, 0.125]
    assert second[1:] == [FINDINGS.index("Mass"), 0, 0, 1, 1]
    names = list(PICTURES)
    for box, name in ((first, names[1]), (second, names[2])):
        image = data.images[prepared.arrays["raw_indices"][int(box[0])], ..., 0]
        assert np.abs(image - pixels()[name].reshape(8, 2, 8, 2).mean((1, 3))).max() <= 0.5


def test_other_boxes_are_another_version(mirror):
    entry = ingest("chestxray14", mirror=mirror.parent)
    path = mirror / chestxray14.BOXES
    path.write_text(path.read_text().replace("256.0", "255.0"))
    rows = chestxray14.rows(chestxray14.find(mirror))
    other = add_data_set("other", rows)
    assert other.version != entry.version and other.files["images.npy"].rows == entry.files["images.npy"].rows


def test_the_published_lists_decide_where_they_are(mirror):
    test = [name for name, patient in PICTURES.items() if patient in ("3", "7")]
    (mirror / "test_list.txt").write_text("\n".join(test))
    (mirror / "train_val_list.txt").write_text("\n".join(name for name in PICTURES if name not in test))
    entry = ingest("chestxray14", mirror=mirror.parent)
    data = open_data_set("chestxray14")
    assert set(data.group_names[data.split == 2].tolist()) == {"3", "7"} and entry.splits["test"] == 6
    assert entry.splits["validation"] > 0
    (mirror / "test_list.txt").write_text("\n".join(test[1:]))
    with pytest.raises(InputError, match=test[0]):
        chestxray14.rows(chestxray14.find(mirror))


@pytest.mark.parametrize("packed", [False, True])
def test_the_subset_is_read_from_its_npz(tmp_path, packed):
    folder = tmp_path / "mirror/chestxray14"
    folder.mkdir(parents=True)
    names = list(PICTURES)
    images = np.stack(list(pixels().values()))
    labels = np.array([[finding in findings_of(name).split("|") for finding in FINDINGS] for name in names], np.uint8)
    buffer = io.BytesIO()
    patients = np.array([int(patient) for patient in PICTURES.values()])
    np.savez(buffer, images=images, labels=labels, files=names, patients=patients, label_names=FINDINGS)
    content = lzma.compress(buffer.getvalue()) if packed else buffer.getvalue()
    (folder / f"chestxray14_1089_64.npz{'.xz' * packed}").write_bytes(content)
    (folder / chestxray14.BOXES).write_text(BOX_HEAD + f"{names[0]},Nodule,512,512,256,256\n")
    entry = ingest("chestxray14", mirror=tmp_path / "mirror")
    data = open_data_set("chestxray14")
    assert entry.rows == 36 and data.images.shape == (36, 16, 16, 1)
    (box,) = data.boxes.tolist()
    assert data.images[int(box[0])].tobytes() == images[0].tobytes() and box[2:] == [0.5, 0.5, 0.25, 0.25]


def test_files_that_are_not_as_published_are_refused(mirror, tmp_path):
    with pytest.raises(InputError, match="REREAD_MIRROR"):
        ingest("chestxray14")
    (tmp_path / "empty/chestxray14").mkdir(parents=True)
    with pytest.raises(InputError, match="has neither"):
        ingest("chestxray14", mirror=tmp_path / "empty")
    entries = mirror / chestxray14.ENTRIES
    whole = entries.read_text()
    entries.write_text(whole.replace("Hernia", "Hernja"))
    with pytest.raises(InputError, match="Hernja"):
        ingest("chestxray14", mirror=mirror.parent)
    entries.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    with pytest.raises(InputError, match=list(PICTURES)[-1]):
        ingest("chestxray14", mirror=mirror.parent)
    entries.write_text(whole)
    script = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n"
    for content in (png(np.zeros((8, 8), np.uint8))[:-30], b"no image", script):
        pack(mirror / "images_003.tar.gz", *{"images/broken.png": content}.items())
        with pytest.raises(InputError, match="broken.png (cannot be decoded|is no PNG)"):
            ingest("chestxray14", mirror=mirror.parent)
    pack(mirror / "images_003.tar.gz", *{"images/small.png": png(np.zeros((4, 4), np.uint8))}.items())
    with pytest.raises(InputError, match="small.png has 4 x 4 pixels"):
        ingest("chestxray14", mirror=mirror.parent)
    (mirror / "images_003.tar.gz").unlink()
    (mirror / chestxray14.BOXES).write_text(BOX_HEAD + f"{next(iter(PICTURES))},Mass,a,b,c,d\n")
    with pytest.raises(InputError, match="no four numbers"):
        ingest("chestxray14", mirror=mirror.parent)
    assert not (tmp_path / "data.manifest.json").exists()


def test_an_image_is_reduced_to_the_mean_of_areas():
    images = np.random.default_rng(0).integers(0, 256, (3, 12, 12, 2), np.uint8)
    reduced = reduce_images(images, 4)
    expected = images.reshape(3, 4, 3, 4, 3, 2).mean((2, 4))
    assert reduced.dtype == np.uint8 and np.abs(reduced - expected).max() < 1
    assert reduce_images(images, 12) is images
    with pytest.raises(InputError, match="size is 13"):
        reduce_images(images, 13)


def test_chestmnist_is_read_by_its_published_format(tmp_path, monkeypatch):
    monkeypatch.setattr(chestmnist, "ROWS", (30, 6, 9))
    generator = np.random.default_rng(0)
    arrays = {}
    for split, count in zip(("train", "val", "test"), chestmnist.ROWS, strict=True):
        arrays[f"{split}_images"] = generator.integers(0, 256, (count, 28, 28), np.uint8)
        arrays[f"{split}_labels"] = generator.integers(0, 2, (count, 14), np.uint8)
    np.savez_compressed(tmp_path / "chestmnist.npz", **arrays)
    rows = chestmnist.rows([tmp_path / "chestmnist.npz"])
    assert rows.images.shape == (45, 28, 28, 1) and rows.about.task == "multi-label"
    assert np.array_equal(rows.images[30:36, ..., 0], arrays["val_images"])
    assert np.array_equal(rows.labels[36:], arrays["test_labels"]) and np.bincount(rows.split).tolist() == [30, 6, 9]
    with pytest.raises(InputError, match="64 x 64"):
        chestmnist.read_rows([tmp_path / "chestmnist.npz"], size=64)
    np.savez(tmp_path / "short.npz", **{**arrays, "test_images": arrays["test_images"][1:]})
    with pytest.raises(InputError, match="test_images"):
        chestmnist.rows([tmp_path / "short.npz"])
    (tmp_path / "cut.npz").write_bytes((tmp_path / "chestmnist.npz").read_bytes()[:-400])
    with pytest.raises(InputError, match="truncated"):
        chestmnist.rows([tmp_path / "cut.npz"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_as_many_images_as_the_whole_set_has_pass_through_in_4_gib(tmp_path):
    command = [sys.executable, "-m", "tests.reread.preprocessing.large_set", "112120", "4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "limit 4096 MiB" in done.stdout.splitlines()[-1]
