"""Data sets made of MNIST's digits: pairs, affine transforms, and affNIST's published format."""

import gzip
import io
import zipfile

import numpy as np
import pytest
from scipy.io import savemat

from reread.preprocessing.download import Archive, find_archive
from reread.preprocessing.sources import affine_mnist, affnist, mnist, multimnist
from reread.storage.errors import InputError
from tests.reread.preprocessing.packing import idx

TRAIN, TEST = 60, 20


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """MNIST's four files with a grey box of 20 x 20 pixels for each digit, of its own shade."""
    monkeypatch.setattr(mnist, "SHAPES", ((TRAIN, 28, 28), (TRAIN,), (TEST, 28, 28), (TEST,)))
    paths = []
    for part, rows in (("train", TRAIN), ("test", TEST)):
        images = np.zeros((rows, 28, 28), np.uint8)
        images[:, 4:24, 4:24] = (100 + np.arange(rows) + (part == "test") * 80)[:, None, None]
        for kind, values in (("images", images), ("labels", np.arange(rows, dtype=np.uint8) % 10)):
            paths.append(tmp_path / f"{part}-{kind}.gz")
            paths[-1].write_bytes(gzip.compress(idx(values)))
    return paths


def boxes(images):
    """First and last row and column of the ink of images [N, H, W, 1], int [N, 4]."""
    places = [np.argwhere(image[..., 0]) for image in images]
    return np.array([[*ink.min(axis=0), *ink.max(axis=0)] for ink in places])


def test_multimnist_lays_digits_of_two_classes_over_each_other(archives):
    rows, again = multimnist.rows(archives), multimnist.rows(archives)
    assert np.array_equal(rows.images, again.images) and np.array_equal(rows.labels, again.labels)
    assert rows.images.shape == (TRAIN + TEST, 36, 36, 1) and rows.about.task == "multi-label"
    single = rows.split == 0
    assert (rows.labels.sum(axis=1) == np.where(single, 1, 2)).all()
    assert (boxes(rows.images[single]) == [8, 8, 27, 27]).all()
    digits = mnist.rows(archives)
    own = (digits.labels[:, None] == np.arange(10)) & (rows.labels == 1)
    assert (own.sum(axis=1) == 1).all()
    pairs = rows.images[~single]
    # Each is shifted by at most 4 pixels.
    edges = boxes(pairs)
    assert (edges[:, :2] >= 4).all() and (edges[:, 2:] <= 31).all() and (edges[:, :2] != 8).any()
    shades = [np.unique(pair)[1:].tolist() for pair in pairs]
    assert sum(len(values) == 3 for values in shades) > len(pairs) / 2
    assert all(values[2] == min(255, values[0] + values[1]) for values in shades if len(values) == 3)


def test_boxes_of_20_pixels_overlap_by_73_percent_of_their_area():
    """The figure of the source's docstring: the mean distance of two shifts is 80 / 27 pixels."""
    generator = np.random.default_rng(0)
    corners = generator.integers(0, 2 * multimnist.SHIFT + 1, (2, 20_000, 2))
    share = np.prod(20 - np.abs(corners[0] - corners[1]), axis=1) / 400
    assert share.mean() == pytest.approx(0.726, abs=0.005)


def test_partners_are_of_another_class():
    labels = np.array([0] * 50 + [1, 2])
    chosen = multimnist.partners(labels, np.random.default_rng(0))
    assert (labels[chosen] != labels).all()


def test_affine_digits_are_whole_and_training_digits_only_moved(archives):
    rows, digits = affine_mnist.rows(archives), mnist.rows(archives)
    assert rows.images.shape == (TRAIN + TEST, 40, 40, 1)
    assert np.array_equal(rows.images, affine_mnist.rows(archives).images)
    assert np.array_equal(rows.labels, digits.labels) and np.array_equal(rows.split, digits.split)
    assert (boxes(rows.images[rows.split == 0]) == [10, 10, 29, 29]).all()
    validation = boxes(rows.images[rows.split == 1])
    assert (validation[:, 2:] - validation[:, :2] == 19).all() and len(np.unique(validation, axis=0)) > 1
    test = rows.images[rows.split == 2]
    # The area is scaled by .64 to 1.44; what is cut at an edge would be less.
    area = (test / digits.images[digits.split == 2].max(axis=(1, 2, 3), keepdims=True)).sum(axis=(1, 2, 3)) / 400
    assert ((area > 0.6) & (area < 1.5)).all() and area.std() > 0.05


def packed(path, member="test.mat", **fields):
    content = io.BytesIO()
    savemat(content, {"affNISTdata": fields})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content.getvalue())
    return path


def test_affnist_s_columns_become_images(tmp_path, archives):
    images = np.random.default_rng(0).integers(0, 256, (7, 40, 40), dtype=np.uint8)
    path = packed(
        tmp_path / "test.mat.zip",
        image=images.reshape(7, 1600).T,
        label_int=np.arange(7, dtype=np.uint8)[None],
        label_one_of_n=np.eye(10)[:, :7],
    )
    rows = affnist.rows([*archives, path])
    assert np.array_equal(rows.images[rows.split == 2][..., 0], images)
    assert rows.labels[rows.split == 2].tolist() == list(range(7))
    assert (rows.split != 2).sum() == TRAIN
    assert np.array_equal(rows.images[:TRAIN], affine_mnist.rows(archives).images[:TRAIN])


def test_another_file_than_affnist_s_is_refused(tmp_path):
    columns, labels = np.zeros((1600, 3), np.uint8), np.zeros((1, 3), np.uint8)
    wrong = [
        packed(tmp_path / "1", member="training.mat", image=columns, label_int=labels),
        packed(tmp_path / "2", image=columns),
        packed(tmp_path / "3", image=columns[:784], label_int=labels),
        packed(tmp_path / "4", image=columns, label_int=labels + 10),
        tmp_path / "none",
    ]
    (tmp_path / "5").write_bytes(b"no archive")
    for path in (*wrong, tmp_path / "5"):
        with pytest.raises(InputError, match=path.name):
            affnist.read_test(path)


def test_an_archive_of_another_data_set_is_read_from_its_folder_of_the_mirror(tmp_path):
    (tmp_path / "mnist").mkdir()
    file = tmp_path / "mnist" / mnist.ARCHIVES[0].file_name
    file.write_bytes(b"")
    assert find_archive(mnist.ARCHIVES[0], "multimnist", tmp_path, mirror=tmp_path) == file
    own = Archive("x.zip", "", "", "")
    with pytest.raises(InputError, match="multimnist/x.zip"):
        find_archive(own, "multimnist", tmp_path, mirror=tmp_path)
