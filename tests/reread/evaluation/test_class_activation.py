"""Class activation maps: exact, compared with boxes, and shown."""

import numpy as np
import pytest
import torch
from torch import nn

import models
from reread.batches.collation import inputs
from reread.evaluation.class_activation import (
    class_activation_maps,
    covered,
    explain,
    has_maps,
    locate,
    mean_scores,
    score,
)
from reread.storage.files import read_json
from reread.storage.prepared import open_prepared

CLASSES = ["Mass", "Nodule", "<b>Hernia</b>"]


class WholeNumbers(nn.Module):
    """A network all of whose sums are exact: whole numbers, and means over 16 places."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 5, 3, padding=1, bias=False)
        self.classifier = nn.Linear(5, 3)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randint(-4, 5, parameter.shape, generator=generator).float()

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.body(images).mean((2, 3)))


def test_the_mean_of_a_map_is_the_logit_less_the_bias_exactly():
    network = WholeNumbers()
    images = torch.randint(0, 256, (2, 1, 4, 4)).float()
    maps, logits = class_activation_maps(network, images)
    assert maps.shape == (2, 3, 4, 4) and torch.equal(logits, network(images))
    assert torch.equal(maps.mean((2, 3)), logits - network.classifier.bias)


@pytest.mark.parametrize("name", ["densenet", "densenet_imagenet"])
def test_the_maps_of_densenets_have_the_logits_less_the_biases_as_means(name):
    description = {"name": "x", "kind": "image", "classes": CLASSES, "arrays": {"images": {"shape": [1, 32, 32, 1]}}}
    torch.manual_seed(0)
    settings = {"depth": 10} if name == "densenet" else {"depth": "13"}
    network = models.build(name, {**settings, "growth_rate": 4}, description).double().eval()
    nn.init.normal_(network.classifier.bias)
    images = torch.randn(3, 1, 32, 32, dtype=torch.float64)
    assert has_maps(network, images)
    with torch.no_grad():
        maps, _ = class_activation_maps(network, images)
        expected = network(images) - network.classifier.bias
    torch.testing.assert_close(maps.mean((2, 3)), expected, rtol=1e-12, atol=1e-12)


def test_a_network_that_ends_in_another_way_has_no_maps():
    class Largest(WholeNumbers):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return self.classifier(self.body(images).amax((2, 3)))

    images = torch.randint(0, 256, (2, 1, 4, 4)).float()
    assert has_maps(WholeNumbers(), images)
    assert not has_maps(Largest(), images) and not has_maps(nn.Linear(4, 3), images)


def test_a_map_is_compared_with_boxes_by_hand():
    """The box covers the left half of a 4 x 4 image; the region is the left column and one place more."""
    activation = np.zeros((4, 4))
    activation[:, 0], activation[0, 3], activation[2, 0] = 6, 5, 10
    boxes = np.array([[0.0, 0.0, 0.5, 1.0]])
    assert covered(boxes, (4, 4)).sum() == 8
    scored = score(activation, boxes, 7, 1)
    assert scored.inside and scored.chance == 0.5 and scored.overlap == 4 / 9
    activation[0, 3] = 11
    assert not score(activation, boxes, 7, 1).inside
    two = np.array([[0.0, 0.0, 0.25, 1.0], [0.75, 0.0, 0.25, 0.25]])
    assert score(activation, two, 7, 1).inside and score(activation, two, 7, 1).chance == 5 / 16


@pytest.fixture
def chest(tools, tmp_path):
    """Test images of 16 x 16 pixels, two of them with boxes, and one box of a training image."""
    boxes = np.array(
        [[0, 0, 0, 0, 1, 1], [22, 1, 0.25, 0.25, 0.5, 0.5], [30, 0, 0, 0, 0.5, 1], [30, 0, 0.5, 0.5, 0.5, 0.5]]
    )
    sizes = {"train": 8, "validation": 12, "test": 20}
    return tools["write_image_data"](tmp_path / "prepared/chest", sizes, CLASSES, "multi-label", side=16, boxes=boxes)


def record_of(tools, tmp_path, prepared, variant="small", **settings):
    record = tools["write_record"](tmp_path / "runs", variant, "densenet", "chest", prepared, 1, 2.0)
    tools["add_weights"](record.run_directory, "densenet", read_json(prepared / "prepared.json"), 1, **settings)
    return record


def test_boxes_of_the_split_are_scored_by_class(tools, tmp_path, chest):
    prepared = open_prepared(chest)
    network = models.load(record_of(tools, tmp_path, chest).run_directory, prepared.description)
    located = locate(network, prepared, "test")
    assert [(location.row, location.label, location.chance) for location in located] == [(22, 1, 0.25), (30, 0, 0.75)]
    maps, _ = class_activation_maps(network, *inputs(prepared, np.array([22])))
    assert maps.shape[2:] == (4, 4)
    rows = mean_scores(located, CLASSES)
    assert [(row["label"], row["images"]) for row in rows] == [("Mass", 1), ("Nodule", 1), ("all", 2)]
    assert rows[2]["overlap"] == pytest.approx((located[0].overlap + located[1].overlap) / 2)


def test_the_page_shows_boxes_and_a_row_of_each_class(tools, tmp_path, chest):
    record = record_of(tools, tmp_path, chest)
    explanation = explain([record], {record.variant: record.seed}, tmp_path)
    page = (tmp_path / explanation.file).read_text()
    assert "&lt;b&gt;Hernia&lt;/b&gt;" in page and "<b>Hernia" not in page
    assert 3 <= page.count('src="data:image/png') <= 5
    assert "with 2 boxes of it" in page and "4 x 4 places" in page and "pointing" in page
    assert sorted(path.name for path in tmp_path.glob("*.png")) == []


def test_a_run_without_weights_and_tiny_images_have_no_page(tools, tmp_path, chest, image_data):
    record = record_of(tools, tmp_path, chest)
    (record.run_directory / "best.safetensors").unlink()
    assert explain([record], {record.variant: 1}, tmp_path) is None
    tiny = tools["write_record"](tmp_path / "runs", "tiny", "densenet", "digits", image_data, 1, 2.0)
    assert explain([tiny], {"tiny": 1}, tmp_path) is None
