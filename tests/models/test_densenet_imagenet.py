"""DenseNets for photographs: the published sizes, and weights in torchvision's names."""

from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

import models
from models import densenet_imagenet
from models.layers import parameter_count
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.settings import from_json, without_defaults

PUBLISHED = {
    "densenet-121": 7_978_856,
    "densenet-161": 28_681_000,
    "densenet-169": 14_149_480,
    "densenet-201": 20_013_928,
}
SMALL = {"depth": "13", "growth_rate": 4}


def description(size=64, channels=3, classes=7):
    arrays = {"images": {"shape": [100, size, size, channels]}}
    return {"name": "pictures", "kind": "image", "classes": list(range(classes)), "arrays": arrays}


class ReferenceLayer(nn.Module):
    def __init__(self, inputs, growth):
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(inputs), nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(4 * growth), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        bottleneck = self.conv1(functional.relu(self.norm1(x)))
        return torch.cat([x, self.conv2(functional.relu(self.norm2(bottleneck)))], 1)


class Reference(nn.Module):
    """The paper's table 1 with torchvision's names."""

    def __init__(self, layers, growth, classes):
        super().__init__()
        width = 2 * growth
        parts = [
            ("conv0", nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)),
            ("norm0", nn.BatchNorm2d(width)),
            ("relu0", nn.ReLU()),
            ("pool0", nn.MaxPool2d(3, stride=2, padding=1)),
        ]
        for block, count in enumerate(layers, 1):
            if block > 1:
                halved = [("norm", nn.BatchNorm2d(width)), ("relu", nn.ReLU())]
                halved += [("conv", nn.Conv2d(width, width // 2, 1, bias=False)), ("pool", nn.AvgPool2d(2, 2))]
                parts.append((f"transition{block - 1}", nn.Sequential(OrderedDict(halved))))
                width //= 2
            own = [(f"denselayer{layer + 1}", ReferenceLayer(width + layer * growth, growth)) for layer in range(count)]
            parts.append((f"denseblock{block}", nn.Sequential(OrderedDict(own))))
            width += count * growth
        parts.append(("norm5", nn.BatchNorm2d(width)))
        self.features = nn.Sequential(OrderedDict(parts))
        self.classifier = nn.Linear(width, classes)

    def forward(self, images):
        return self.classifier(functional.relu(self.features(images)).mean((2, 3)))


@pytest.fixture(scope="module")
def reference():
    torch.manual_seed(0)
    network = Reference((1, 1, 1, 1), 4, 7).eval()
    for name, tensor in network.state_dict().items():
        if "norm" in name and tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.5, 1.5)
    return network


def old_names(state):
    """As the first published files name them."""
    pairs = [(name.replace("norm1.", "norm.1.").replace("norm2.", "norm.2."), value) for name, value in state.items()]
    pairs = [(name.replace("conv1.", "conv.1.").replace("conv2.", "conv.2."), value) for name, value in pairs]
    return {name: value for name, value in pairs if "num_batches_tracked" not in name}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_size_has_the_published_parameters_and_reads_torchvision_s_names(name):
    settings = densenet_imagenet.SIZES[name]
    with torch.device("meta"):
        network = models.build("densenet_imagenet", settings, description(224, classes=1000))
        theirs = Reference(densenet_imagenet.LAYERS[settings["depth"]], settings.get("growth_rate", 32), 1000)
    assert parameter_count(network) == PUBLISHED[name] == parameter_count(theirs)
    ours = densenet_imagenet.from_torchvision(theirs.state_dict())
    own = network.state_dict()
    assert {key: value.shape for key, value in ours.items()} == {key: value.shape for key, value in own.items()}


@pytest.mark.parametrize("rename", [dict, old_names])
def test_torchvision_s_weights_give_its_logits(reference, rename):
    network = models.build("densenet_imagenet", SMALL, description()).eval()
    state = densenet_imagenet.from_torchvision(rename(reference.state_dict()))
    densenet_imagenet.fit_initial_weights(network, state, "here")
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(network(images), reference(images))


@pytest.fixture
def weights(tmp_path, reference):
    """The setting of a file with the reference's weights."""
    path = tmp_path / "photographs.safetensors"
    save_file(reference.state_dict(), path)
    return {"path": str(path), "sha256": sha256_file(path)}


def test_a_run_begins_with_the_weights_of_a_file(reference, weights):
    """Grey images give what they give repeated to three channels; another number of classes begins anew."""
    settings = {**SMALL, "initial_weights": weights}
    images = torch.randn(2, 1, 64, 64)
    same = models.build("densenet_imagenet", settings, description(channels=1)).eval()
    other = models.build("densenet_imagenet", settings, description(channels=1, classes=14)).eval()
    with torch.no_grad():
        expected = reference(images.expand(-1, 3, -1, -1))
        torch.testing.assert_close(same(images), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.body(images), same.body(images))
        assert other(images).shape == (2, 14)


def test_a_trained_beta_begins_at_one(weights):
    settings = {**SMALL, "activation": {"name": "swish_beta"}, "initial_weights": weights}
    network = models.build("densenet_imagenet", settings, description())
    betas = [value for name, value in network.state_dict().items() if name.endswith("beta")]
    assert betas and all(beta == 1 for beta in betas)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"path": "missing.safetensors"}, "missing.safetensors is missing"),
        ({"sha256": "0" * 64}, "another sha256"),
        ({"path": "model.pth"}, "model.pth"),
        ({"sha256": "abc"}, "sha256 is 'abc'"),
    ],
)
def test_another_file_is_refused(weights, change, problem):
    with pytest.raises(InputError, match=problem):
        models.build("densenet_imagenet", {**SMALL, "initial_weights": weights | change}, description())


def test_weights_of_another_network_are_refused(weights):
    for settings in ({"depth": "13", "growth_rate": 8}, {"depth": "121", "growth_rate": 4}):
        with pytest.raises(InputError, match=r"does not fit: body\."):
            models.build("densenet_imagenet", {**settings, "initial_weights": weights}, description())
    with pytest.raises(InputError, match="'layer1.weight' is no weight"):
        densenet_imagenet.from_torchvision({"layer1.weight": torch.zeros(1)})


def test_the_key_has_the_digest_of_the_file_and_not_its_path(weights):
    settings = read(densenet_imagenet.Settings, {**SMALL, "initial_weights": weights}, "network")
    assert without_defaults(settings)["initial_weights"] == {"sha256": weights["sha256"]}
    assert "initial_weights" not in without_defaults(from_json(densenet_imagenet.Settings, SMALL))
    with pytest.raises(InputError, match=r"network\.initial_weights"):
        read(densenet_imagenet.Settings, {"initial_weights": weights | {"sha256": "abc"}}, "network")
