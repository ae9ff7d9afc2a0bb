"""The fast network: what it begins as, what it learns, and what evaluation averages."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

import models
from models.layers import parameter_count
from models.layers.initialisation import init_from_data
from reread.storage.errors import InputError
from reread.storage.prepared import Prepared

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")

SMALL = {"widths": [8, 12, 12]}


@pytest.fixture
def pictures():
    """100 images of 12 x 12 pixels whose neighbours are alike; the test split is brighter than the others."""
    generator = np.random.default_rng(0)
    images = np.repeat(np.repeat(generator.integers(0, 100, (100, 6, 6, 3)), 2, axis=1), 2, axis=2)
    images = (images + generator.integers(0, 60, (100, 12, 12, 3))).astype(np.uint8)
    images[90:] += 90
    description = {
        "name": "pictures",
        "kind": "image",
        "classes": list("abcde"),
        "splits": {"train": [0, 80], "validation": [80, 90], "test": [90, 100]},
        "arrays": {"images": {"shape": list(images.shape)}},
        "mean": [0.3] * 3,
        "deviation": [0.15] * 3,
    }
    return Prepared(Path(), description, {"images": images})


def normalised(prepared, rows):
    return (torch.from_numpy(prepared.arrays["images"][rows]).permute(0, 3, 1, 2) / 255 - 0.3) / 0.15


def test_widths_of_the_source_have_its_number_of_weights():
    """airbench94: the 3x3 convolutions, the head, the norms' biases and the whitening's; its 288 filters are frozen."""
    description = {"name": "c", "kind": "image", "classes": range(10), "arrays": {"images": {"shape": [1, 32, 32, 3]}}}
    network = models.build("fastnet", {}, description)
    kernels = 9 * (24 * 64 + 64 * 64 + 64 * 256 + 3 * 256 * 256)
    assert parameter_count(network) == kernels + 256 * 10 + 2 * (64 + 256 + 256) + 24
    assert network(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_the_first_convolution_whitens_the_patches_of_the_training_split(pictures):
    network = models.build("fastnet", SMALL, pictures.description)
    init_from_data(network, pictures)
    assert not network.whitening.weight.requires_grad and network.whitening.bias.requires_grad
    with torch.no_grad():
        white = network.whitening(normalised(pictures, pictures.rows("train"))) - network.whitening.bias.view(-1, 1, 1)
    patches = white.movedim(1, 3).flatten(0, 2)
    moments = patches.T @ patches / len(patches)
    eye = torch.eye(12)
    # What little an eigenvalue lacks is the number added to it.
    torch.testing.assert_close(
        moments, torch.cat((torch.cat((eye, -eye)), torch.cat((-eye, eye))), 1), rtol=0, atol=0.02
    )
    # Other splits change nothing.
    changed = dict(pictures.arrays) | {"images": pictures.arrays["images"].copy()}
    changed["images"][80:] = 0
    other = models.build("fastnet", SMALL, pictures.description)
    init_from_data(other, Prepared(Path(), pictures.description, changed))
    assert torch.equal(other.whitening.weight, network.whitening.weight)


def test_images_of_half_precision_are_whitened_in_the_weights_own(pictures):
    network = models.build("fastnet", SMALL, pictures.description).eval()
    images = normalised(pictures, pictures.rows("train")).half()
    assert torch.equal(network.whitening(images), network.whitening(images.float()))
    assert torch.equal(network(images), network(images.float()))


def test_weights_of_half_precision_whiten_in_float32(pictures):
    whitening = models.build("fastnet", SMALL, pictures.description).whitening.bfloat16()
    images = normalised(pictures, pictures.rows("train"))
    expected = functional.conv2d(images, whitening.weight.float(), whitening.bias.float())
    assert torch.equal(whitening(images), expected.bfloat16())


def test_autocast_leaves_float64_as_it_is(pictures):
    whitening = models.build("fastnet", SMALL, pictures.description).whitening.double()
    images = normalised(pictures, pictures.rows("train")).double()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(whitening(images), functional.conv2d(images, whitening.weight, whitening.bias))


def test_without_whitening_the_first_convolution_is_drawn_and_trained(pictures):
    network = models.build("fastnet", SMALL | {"whitening": False}, pictures.description)
    before = network.whitening.weight.detach().clone()
    init_from_data(network, pictures)
    assert torch.equal(network.whitening.weight, before) and network.whitening.weight.requires_grad


def test_convolutions_begin_as_the_identity(pictures):
    block = models.build("fastnet", SMALL, pictures.description).blocks[1]
    x = torch.randn(2, 8, 5, 5)
    torch.testing.assert_close(block.convolutions[0](x)[:, :8], x)


@pytest.mark.parametrize("activation", ["gelu", "swish", "swish_beta"])
@pytest.mark.parametrize("convolutions", [2, 3])
def test_every_trained_parameter_is_in_one_group_and_learns(pictures, activation, convolutions):
    settings = SMALL | {"activation": {"name": activation}, "convolutions": convolutions}
    network = models.build("fastnet", settings, pictures.description)
    network(normalised(pictures, pictures.rows("train"))).square().sum().backward()
    groups = network.parameter_groups()
    grouped = [parameter for group in groups for parameter in group["params"]]
    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    assert len(grouped) == len(trained) and {*map(id, grouped)} == {*map(id, trained)}
    assert all(parameter.grad.abs().sum() > 0 for parameter in trained)
    assert [(group["lr_scale"], group["weight_decay"]) for group in groups] == [
        (1.0, True),
        (1.0, False),
        (64.0, False),
    ]


def test_evaluation_averages_the_views_and_training_reads_one(pictures):
    images = normalised(pictures, pictures.rows("train"))
    network = models.build("fastnet", SMALL, pictures.description)
    init_from_data(network, pictures)
    network(images)
    logits = {}
    for views in ("image", "mirrored", "mirrored_shifted"):
        network.views = views
        with torch.no_grad():
            assert torch.equal(network.train().requires_grad_(False)(images), network.logits(images))
            logits[views] = network.eval()(images)
            mirrored = network(images.flip(3))
        same = torch.allclose(logits[views], mirrored, atol=1e-5)
        assert same == (views == "mirrored"), "the diagonal of the shifts is no mirror image of itself"
    shifted = torch.nn.functional.pad(images, (1, 1, 1, 1), "reflect")
    with torch.no_grad():
        plain = [(network.logits(x) + network.logits(x.flip(3))) / 2 for x in (images, shifted[..., :-2, :-2])]
        plain.append((network.logits(shifted[..., 2:, 2:]) + network.logits(shifted[..., 2:, 2:].flip(3))) / 2)
    expected = plain[0] / 2 + (plain[1] + plain[2]) / 4
    torch.testing.assert_close(logits["mirrored_shifted"], expected)


def test_images_that_are_too_small_and_a_wrong_number_of_widths_are_refused(pictures):
    arrays = {"images": {"shape": [1, 8, 12, 3]}}
    with pytest.raises(InputError, match="8 x 12 pixels"):
        models.build("fastnet", SMALL, pictures.description | {"arrays": arrays})
    with pytest.raises(InputError, match="widths"):
        models.build("fastnet", {"widths": [8, 8]}, pictures.description)
