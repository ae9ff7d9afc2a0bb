"""Residual networks on a GPU: kernels against modules, and stochastic depth inside a CUDA graph."""

import copy

import pytest
import torch
from torch.nn import functional

import models
from cuda_ext import library
from cuda_ext.graphs import Graphs
from models.layers import fusing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
NETWORKS = {
    "highway": {"depth": 19},
    "preresnet": {"depth": 29, "block": "bottleneck"},
    "resnet": {"depth": 20},
    "resnet18": {"width": 16},
    "resnext": {"depth": 29, "cardinality": 4, "base_width": 4, "width": 16},
    "stochastic_depth": {"depth": 20, "survival": 1.0},
    "wide_resnet": {"depth": 16, "widening": 2},
    "densenet": {"depth": 22, "growth_rate": 12, "bottleneck": False},
}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def network(name, activation="swish", **settings):
    torch.manual_seed(0)
    arrays = {"images": {"shape": [100, 32, 32, 3]}}
    description = {"name": "pictures", "kind": "image", "classes": list(range(10)), "arrays": arrays}
    given = {**NETWORKS[name], "activation": {"name": activation}, **settings}
    built = models.build(name, given, description).cuda()
    return built, torch.randn(32, 3, 32, 32, device="cuda").to(memory_format=torch.channels_last)


def step(network, images, fused, dtype):
    """Loss, gradients and statistics after one step, in float64."""
    network, images = copy.deepcopy(network).to(dtype), images.to(dtype)
    torch.manual_seed(1)
    with fusing.by_modules(not fused):
        loss = functional.cross_entropy(network(images), torch.arange(32, device="cuda") % 10)
        loss.backward()
    parts = [loss.detach()[None]], [p.grad for p in network.parameters()], list(network.buffers())
    return [torch.cat([tensor.double().flatten() for tensor in part]) for part in parts]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("activation", ["relu", "swish_beta"])
def test_a_step_by_kernels_is_that_of_pytorch_s_modules(name, activation):
    built, images = network(name, activation)
    exact = step(built, images, False, torch.float64)
    for result, expected in zip(step(built, images, True, torch.float64), exact, strict=True):
        assert (result - expected).norm() <= 1e-9 * expected.norm()
    if activation != "relu":  # whose gradient jumps where float32 rounds to the other side of zero
        fused, plain = (step(built, images, by_kernels, torch.float32) for by_kernels in (True, False))
        for result, usual, expected in zip(fused, plain, exact, strict=True):
            error, own = (result - expected).norm() / expected.norm(), (usual - expected).norm() / expected.norm()
            assert error <= max(1e-5, 2 * own)


def test_a_graph_of_stochastic_depth_draws_new_branches_at_each_replay():
    built, images = network("stochastic_depth", survival=0.5)
    graphs = Graphs(lambda x: (built.scales().clone(), built(x).detach()), "a step", images.device)
    with torch.no_grad():
        drawn = [graphs(images)[0].clone() for _ in range(20)]
    assert not graphs.failed
    assert len({tuple(scales.tolist()) for scales in drawn}) > 5
    assert set(torch.stack(drawn).unique().tolist()) == {0.0, 1.0}


def test_stochastic_depth_draws_the_same_with_a_graph_and_without():
    built, images = network("stochastic_depth", survival=0.5)
    results = []
    for graphed in (True, False):
        own = copy.deepcopy(built)
        run = Graphs(own, "a step", images.device) if graphed else own
        torch.manual_seed(3)
        with torch.no_grad():
            results.append([run(images).clone() for _ in range(4)])
    for logits, other in zip(*results, strict=True):
        assert torch.equal(logits, other)
