"""Residual networks and their kin: sizes of the papers, every activation, and what sets each of them apart."""

import functools
import json
import re

import pytest
import torch
from torch import nn

import models
from models.activations import REGISTRY
from models.layers import fusing, norm_activation, parameter_count, residual
from models.stochastic_depth import StochasticDepth
from reread.planning.validation import read
from reread.storage.errors import InputError
from reread.storage.source import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
KIN = ["highway", "preresnet", "resnet", "resnet18", "resnext", "stochastic_depth", "wide_resnet"]
SMALL = {
    "highway": {"depth": 10, "width": 3},
    "preresnet": {"depth": 11, "block": "bottleneck", "width": 2},
    "resnet": {"depth": 8, "width": 3},
    "resnet18": {"width": 3},
    "resnext": {"depth": 11, "cardinality": 2, "base_width": 2, "width": 2},
    "stochastic_depth": {"depth": 8, "width": 3},
    "wide_resnet": {"depth": 10},
}


def description(size=32, channels=3, classes=10):
    arrays = {"images": {"shape": [100, size, size, channels]}}
    return {"name": "pictures", "kind": "image", "classes": list(range(classes)), "arrays": arrays}


def counted(model, network):
    """The parameters of a network on 10 classes, whose weights are never drawn."""
    return counted_once(model, json.dumps(network))


@functools.cache
def counted_once(model, network):
    with torch.device("meta"):
        return parameter_count(models.build(model, json.loads(network), description()))


@pytest.mark.parametrize(
    ("model", "network", "parameters", "paper"),
    [
        ("resnet", {"size": "20"}, 269_722, "0.27M"),
        ("resnet", {"size": "56"}, 853_018, "0.85M"),
        ("resnet", {"size": "110"}, 1_727_962, "1.7M"),
        ("resnet", {"size": "1202"}, 19_421_274, "19.4M"),
        ("resnet", {"size": "plain-110"}, 1_727_962, "1.7M"),
        ("stochastic_depth", {"size": "110"}, 1_727_962, "1.7M"),
        ("preresnet", {"size": "110"}, 1_730_522, "1.7M"),
        ("preresnet", {"size": "164"}, 1_703_258, "1.7M"),
        ("preresnet", {"size": "1001"}, 10_327_706, None),
        ("wide_resnet", {"size": "16-4"}, 2_748_890, None),
        ("wide_resnet", {"size": "16-8"}, 10_961_370, "11.0M"),
        ("wide_resnet", {"size": "40-4"}, 8_949_210, "8.9M"),
        ("wide_resnet", {"size": "28-10"}, 36_479_194, "36.5M"),
        ("resnext", {"size": "29-8x64d"}, 34_426_698, "34.4M"),
        ("resnext", {"size": "29-16x64d"}, 68_155_210, None),
        ("resnet18", {}, 11_173_962, None),
        ("densenet", {"size": "40-12"}, 1_019_722, "1.0M"),
        ("densenet", {"size": "100-12"}, 6_979_642, "7.0M"),
        ("densenet", {"size": "100-24"}, 27_249_082, "27.2M"),
        ("densenet", {"size": "bc-100-12"}, 769_162, "0.8M"),
        ("densenet", {"size": "bc-250-24"}, 15_324_406, "15.3M"),
        ("densenet", {"size": "bc-190-40"}, 25_624_430, "25.6M"),
        ("highway", {"depth": 31}, 898_282, None),
    ],
)
def test_parameters_are_those_of_the_paper(model, network, parameters, paper):
    """``paper``: as its table has it, in millions; None where the paper gives none, or counts another way."""
    assert counted(model, models.with_size(model, network)) == parameters
    if paper:
        digits = len(paper.split(".")[1]) - 1
        assert f"{parameters / 1e6:.{digits}f}M" == paper


@pytest.mark.parametrize(
    ("model", "size"), [(model, size) for model in models.available() for size in models.sizes(model)]
)
def test_each_named_size_is_one_that_its_network_takes(model, size):
    read(models.settings_class(model), models.with_size(model, {"size": size}), "network")


def test_the_page_has_every_named_size_of_its_networks_with_its_parameters():
    page = (ROOT / "docs/networks.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (?:`([\w-]+)`)? ?\| ([\d,]+) \|", page, re.MULTILINE)
    assert {(model, size) for model, size, _ in rows if size} == {
        (model, size) for model in {model for model, _, _ in rows} for size in models.sizes(model)
    }
    for model, size, parameters in rows:
        network = models.with_size(model, {"size": size}) if size else {}
        assert f"{counted(model, network):,}" == parameters, (model, size)


@pytest.mark.parametrize("model", KIN)
def test_each_stage_but_the_first_halves_the_image(model):
    network, sides = models.build(model, SMALL[model], description()).eval(), []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda module, given, maps: sides.append(maps.shape[2]))
    network(torch.randn(1, 3, 32, 32))
    assert sorted(set(sides)) == ([4, 8, 16, 32] if model == "resnet18" else [8, 16, 32])
    assert (sides[0], sides[-1]) == (32, min(sides))


@pytest.mark.parametrize("model", [*KIN, "densenet"])
@pytest.mark.parametrize("activation", REGISTRY.available())
def test_every_network_takes_every_activation(model, activation):
    settings = SMALL.get(model, {"depth": 10, "growth_rate": 3, "bottleneck": False})
    network = models.build(model, {**settings, "activation": {"name": activation}}, description(9, 1, 5))
    logits = network(torch.randn(3, 1, 9, 9))
    assert logits.shape == (3, 5)
    logits.square().sum().backward()
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert sum(type(module).__name__ == type(norm_activation.NormActivation(1, {"name": activation}).activate).__name__
               for module in network.modules()) > 3  # fmt: skip


@pytest.mark.parametrize("model", [*KIN, "densenet"])
@pytest.mark.parametrize("activation", ["relu", "swish_beta"])
def test_with_kernels_a_step_has_the_losses_gradients_and_statistics_of_the_modules(model, activation, monkeypatch):
    """The path that a GPU takes, by the kernels' references."""
    monkeypatch.setattr(norm_activation, "has_kernel", lambda operation, x: not fusing._by_modules)
    settings = SMALL.get(model, {"depth": 10, "growth_rate": 3, "bottleneck": False})
    images = torch.randn(3, 3, 12, 12, dtype=torch.float64)
    results = []
    for by_modules in (True, False):
        torch.manual_seed(0)
        network = models.build(model, {**settings, "activation": {"name": activation}}, description(12)).double()
        torch.manual_seed(1)
        with fusing.by_modules(by_modules):
            logits = network(images)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in network.parameters()), *network.buffers()])
    for tensor, other in zip(*results, strict=True):
        torch.testing.assert_close(tensor, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("model", "settings", "layers"),
    [("resnet", {"depth": 20}, 20), ("preresnet", {"depth": 20}, 20), ("resnet", {"depth": 14, "shortcut": "none"}, 14),
     ("preresnet", {"depth": 29, "block": "bottleneck"}, 29), ("wide_resnet", {"depth": 22}, 20),
     ("resnext", {"depth": 29}, 29), ("resnet18", {}, 18), ("densenet", {"depth": 40, "bottleneck": False}, 40)],
)  # fmt: skip
def test_depth_counts_convolutions_of_branches_and_the_classifier(model, settings, layers):
    """Projections of shortcuts are not counted. A wide network's paper counts its three and not the classifier."""
    with torch.device("meta"):
        network = models.build(model, settings, description())
    shortcuts = {
        id(module)
        for unit in network.modules()
        for part in (getattr(unit, "shortcut", None), getattr(unit, "projection", None))
        if isinstance(part, nn.Module)
        for module in part.modules()
    }
    counted = [
        layer for layer in network.modules() if isinstance(layer, nn.Conv2d | nn.Linear) and id(layer) not in shortcuts
    ]
    assert len(counted) == layers


@pytest.mark.parametrize(
    ("model", "settings", "right"),
    [("resnet", {"depth": 21}, 20), ("preresnet", {"depth": 163, "block": "bottleneck"}, 164),
     ("highway", {"depth": 9}, 10), ("wide_resnet", {"depth": 17}, 16), ("resnext", {"depth": 30}, 29),
     ("stochastic_depth", {"depth": 111}, 110), ("densenet", {"depth": 41, "bottleneck": False}, 40)],
)  # fmt: skip
def test_a_depth_that_no_network_has_is_refused_with_the_nearest_right_one(model, settings, right):
    with pytest.raises(InputError, match=f"depth is {settings['depth']}: .* {right}$"):
        models.settings(model, settings)


@pytest.mark.parametrize("model", KIN)
def test_images_that_cannot_be_halved_are_refused(model):
    least = 8 if model == "resnet18" else 4
    with pytest.raises(InputError, match=f"{least - 1} x {least - 1} pixels are too small for {model}"):
        models.build(model, SMALL[model], description(size=least - 1))
    models.build(model, SMALL[model], description(size=least))


def test_a_padded_shortcut_keeps_its_channels_and_adds_zeros():
    x = torch.randn(2, 3, 8, 8)
    shortcut = residual.padded_shortcut(3, 5, 2)(x)
    assert (
        torch.equal(shortcut[:, :3], x[:, :, ::2, ::2]) and shortcut.shape == (2, 5, 4, 4) and not shortcut[:, 3:].any()
    )


@pytest.mark.parametrize("model", ["resnet", "preresnet", "wide_resnet"])
def test_without_their_branches_units_pass_their_input_on(model):
    """Before an activation (post) or unchanged (pre); the plain network has no such units."""
    network = models.build(model, {"preresnet": {"depth": 14}}.get(model, SMALL[model]), description(8)).eval()
    units = [
        module for module in network.modules() if isinstance(module, residual.PostActivation | residual.PreActivation)
    ]
    unit = next(candidate for candidate in units if getattr(candidate, "projection", None) is None)
    for parameter in unit.branch.parameters():
        nn.init.zeros_(parameter)
    channels = next(module for module in unit.branch.modules() if isinstance(module, nn.Conv2d)).in_channels
    x = torch.randn(2, channels, 8, 8)
    assert torch.equal(unit(x), x.relu() if model == "resnet" else x)
    plain = models.build("resnet", {"depth": 8, "shortcut": "none"}, description(8))
    assert not any(isinstance(module, residual.PostActivation) for module in plain.modules())


def test_a_highway_layer_mixes_its_input_with_its_transform_by_the_gate():
    torch.manual_seed(0)
    network = models.build("highway", {"depth": 7, "width": 3, "gate_bias": -3.0}, description(8)).eval()
    layer = next(module for module in network.modules() if type(module).__name__ == "HighwayLayer")
    x = torch.randn(2, 3, 8, 8)
    gate = layer.gate(x).sigmoid()
    torch.testing.assert_close(layer(x), gate * layer.transform(x) + (1 - gate) * x)
    nn.init.zeros_(layer.gate.weight)
    assert layer.gate(x).eq(-3).all()


def stochastic(**settings):
    torch.manual_seed(0)
    return models.build("stochastic_depth", {"depth": 20, "width": 2, **settings}, description(8))


def test_stochastic_depth_decays_linearly_to_the_last_unit_s_survival():
    network = stochastic(survival=0.5)
    torch.testing.assert_close(network.survival, torch.linspace(1 - 0.5 / 9, 0.5, 9))
    assert "survival" not in network.state_dict()
    assert torch.equal(network.eval().scales(), network.survival)


def test_stochastic_depth_draws_a_unit_at_its_survival_and_again_from_the_same_seed():
    network = stochastic().train()
    drawn = torch.stack([network.scales() for _ in range(4000)])
    assert set(drawn.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(drawn.mean(0), network.survival, atol=0.04, rtol=0)
    images = torch.randn(4, 3, 8, 8)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(network(images))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])


def test_a_unit_that_is_left_out_passes_its_input_on_and_gets_no_gradient(monkeypatch):
    network = stochastic().train()
    monkeypatch.setattr(StochasticDepth, "scales", lambda self: torch.tensor([1.0, 0.0] * 4 + [1.0]))
    network(torch.randn(4, 3, 8, 8)).square().sum().backward()
    for number, unit in enumerate(network.units):
        gradients = [parameter.grad for parameter in unit.branch.parameters()]
        assert all(gradient.eq(0).all() for gradient in gradients) == bool(number % 2)
