"""The picture of reconstructions, from a capsule network that is not trained."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import models
from models.capsnet import Settings
from reread.evaluation import reconstructions
from reread.storage.files import write_json
from reread.storage.prepared import Prepared

ROWS, SIZE, CLASSES = 12, 18, 4
SMALL = {"channels": 6, "primary_types": 2, "primary_dim": 4, "capsule_dim": 3, "decoder_units": (8,)}


@pytest.fixture(params=["single-label", "multi-label"])
def prepared(request):
    generator = np.random.default_rng(0)
    labels = (np.arange(ROWS) % CLASSES).astype(np.int32)
    if request.param == "multi-label":
        labels = np.eye(CLASSES, dtype=np.uint8)[labels] | np.eye(CLASSES, dtype=np.uint8)[(labels + 1) % CLASSES]
    images = generator.integers(0, 256, (ROWS, SIZE, SIZE, 1)).astype(np.uint8)
    description = {
        "name": "small", "kind": "image", "task": request.param, "classes": list("abcd"), "mean": [0.5],
        "deviation": [0.3], "splits": {"train": [0, 2], "validation": [2, 4], "test": [4, ROWS]},
        "arrays": {"images": {"shape": list(images.shape)}},
    }  # fmt: skip
    return Prepared(Path("nowhere"), description, {"images": images, "labels": labels})


@pytest.fixture
def network(prepared, monkeypatch, tmp_path):
    torch.manual_seed(0)
    network = models.build("capsnet", SMALL, prepared.description).eval()
    monkeypatch.setattr(models, "load", lambda *_: network)
    (tmp_path / reconstructions.WEIGHTS).write_bytes(b"")
    write_json(tmp_path / "job.json", {"model": "capsnet", "network": SMALL})
    return network


def test_right_and_wrong_rows_are_drawn(prepared, network, tmp_path):
    assert reconstructions.has_reconstructions(tmp_path, prepared)
    probabilities = np.random.default_rng(1).random((ROWS - 4, CLASSES)).astype(np.float32)
    for of in (probabilities, np.zeros_like(probabilities) + np.arange(CLASSES, dtype=np.float32)):
        paths = [tmp_path / name for name in ("one.png", "two.png")]
        for path in paths:
            reconstructions.write_reconstructions(tmp_path, prepared, of, path)
        assert paths[0].read_bytes() == paths[1].read_bytes() != b""


def test_the_page_is_of_the_first_variant_with_a_decoder_at_its_best_seed(prepared, network, tmp_path):
    probabilities = np.random.default_rng(1).random((ROWS - 4, CLASSES)).astype(np.float32)
    (tmp_path / "plain").mkdir()

    def record(variant, seed, folder):
        about = {"variant": variant, "seed": seed, "run_directory": folder, "prepared": prepared}
        return SimpleNamespace(**about, probabilities=lambda split: probabilities)

    records = [record("plain", 0, tmp_path / "plain"), record("caps", 0, tmp_path), record("caps", 1, tmp_path)]
    explanation = reconstructions.explain(records, {"plain": 0, "caps": 1}, tmp_path)
    assert explanation.title == "What caps draws of its capsules (seed 1)"
    page = (tmp_path / explanation.file).read_text()
    assert page.count("data:image/png;base64") == 1 and "small, images of the test split" in page
    assert reconstructions.explain(records[:1], {"plain": 0}, tmp_path) is None


def test_each_predicted_class_is_decoded_alone_in_its_own_plane(prepared, network):
    rows = np.array([5, 6])
    classes = np.zeros((2, CLASSES), bool)
    classes[0, [1, 3]] = classes[1, 2] = True
    image, pictures = reconstructions.drawn(network, prepared, rows, classes)
    np.testing.assert_array_equal(image[..., 2] * 255, prepared.arrays["images"][rows][..., 0])
    with torch.no_grad():
        inputs = (torch.from_numpy(prepared.arrays["images"][rows]).permute(0, 3, 1, 2) / 255 - 0.5) / 0.3
        capsules = network.capsules(inputs)
        eye = torch.eye(CLASSES)
        first, second = (network.reconstruct(capsules[:1], eye[[label]]).view(SIZE, SIZE).numpy() for label in (1, 3))
        other = network.reconstruct(capsules[1:], eye[[2]]).view(SIZE, SIZE).numpy()
    np.testing.assert_allclose(pictures[0], np.stack([first, second, 0 * first], axis=2), atol=1e-6)
    np.testing.assert_allclose(pictures[1], np.stack([other] * 3, axis=2), atol=1e-6)


def test_the_middle_of_the_changes_changes_nothing(prepared, network):
    classes = np.eye(CLASSES, dtype=bool)[[2]]
    grid = reconstructions.changed(network, prepared, np.array([7]), classes)
    assert grid.shape == (Settings(**SMALL).capsule_dim, len(reconstructions.CHANGES), SIZE, SIZE)
    plain = reconstructions.drawn(network, prepared, np.array([7]), classes)[1, 0, ..., 0]
    np.testing.assert_allclose(grid[:, 5], np.broadcast_to(plain, grid[:, 5].shape), atol=1e-6)
    assert not np.allclose(grid[:, 0], grid[:, 5])


def test_as_many_classes_are_predicted_as_a_row_has_labels():
    truth = np.array([[True, True, False], [False, True, False]])
    probabilities = np.array([[0.1, 0.3, 0.2], [0.5, 0.5, 0.1]])
    predicted = reconstructions.predicted_labels(probabilities, truth)
    assert predicted.tolist() == [[False, True, True], [True, False, False]]


def test_without_a_decoder_or_weights_there_is_no_picture(prepared, network, tmp_path):
    for job in ({"model": "capsnet", "network": {"reconstruction": False}}, {"model": "densenet", "network": {}}):
        write_json(tmp_path / "job.json", job)
        assert not reconstructions.has_reconstructions(tmp_path, prepared)
    assert not reconstructions.has_reconstructions(tmp_path / "none", prepared)
