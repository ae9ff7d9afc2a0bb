"""DenseNet-BC against the paper's figures, and the settings that it refuses."""

import pytest
import torch

import models
from models.layers import kernels, parameter_count
from models.layers.activations import Swish
from storage.errors import InputError

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def description(size=32, channels=3, classes=10):
    arrays = {"images": {"shape": [100, size, size, channels]}}
    return {"name": "pictures", "kind": "image", "classes": list(range(classes)), "arrays": arrays}


@pytest.mark.parametrize(
    ("depth", "growth_rate", "classes", "parameters"),
    [(100, 12, 10, 769_162), (100, 12, 100, 800_032)],
)
def test_parameters_are_those_of_the_paper(depth, growth_rate, classes, parameters):
    """Huang et al., table 2: 0.8M for DenseNet-BC of depth 100 and growth rate 12."""
    settings = {"depth": depth, "growth_rate": growth_rate}
    assert parameter_count(models.build("densenet", settings, description(classes=classes))) == parameters


@pytest.mark.parametrize("size", [4, 8, 28, 32])
def test_images_are_halved_twice(size):
    network = models.build("densenet", {"depth": 10, "growth_rate": 4}, description(size, 1)).eval()
    images = torch.randn(2, 1, size, size)
    assert network.body(images).shape[2:] == (size // 4, size // 4)
    assert network(images).shape == (2, 10)


def test_depth_counts_convolutions_and_the_classifier():
    network = models.build("densenet", {"depth": 28, "growth_rate": 4}, description())
    layers = [module for module in network.modules() if isinstance(module, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(layers) == 28


@pytest.mark.parametrize(("wrong", "right"), [(11, 10), (20, 22), (39, 40), (101, 100)])
def test_a_depth_that_no_network_has_is_refused_with_the_nearest_right_one(wrong, right):
    with pytest.raises(InputError, match=f"depth is {wrong}: .* nearest is {right}"):
        models.settings("densenet", {"depth": wrong})


def test_images_too_small_are_refused():
    with pytest.raises(InputError, match="3 x 3 pixels are too small"):
        models.build("densenet", {}, description(size=3))


@pytest.mark.parametrize(("name", "trained"), [("relu", 0), ("swish", 0), ("swish-beta", 21)])
def test_swish_beta_trains_one_beta_a_layer(name, trained):
    """Depth 22 has 3 blocks of 3 layers of 2, 2 transitions and the last norm: 21 activations."""
    network = models.build("densenet", {"depth": 22, "activation": name}, description())
    betas = [module.beta for module in network.modules() if isinstance(module, Swish) and module.beta is not None]
    assert len(betas) == trained and all(beta.shape == () and beta == 1 for beta in betas)
    assert kernels(network).startswith("none" if name == "relu" else "reference (the tensors are on the cpu")
    network(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(beta.grad is not None and beta.grad != 0 for beta in betas)
