"""The 7x7 convolution of photographs on a GPU: rearranged, it is as close to float64 as PyTorch's."""

import copy

import pytest
import torch
from torch import nn

from models.layers import stem
from models.layers.stem import Stem, rearranged_convolution
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# PyTorch's compiler uses what PyTorch deprecates.
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def calls(monkeypatch):
    """The calls of the rearranged form."""
    calls = []
    monkeypatch.setattr(
        stem, "rearranged_convolution", lambda *given: calls.append(1) or rearranged_convolution(*given)
    )
    return calls


def layer_and_images(channels=3, height=64, width=96):
    torch.manual_seed(0)
    layer = Stem(channels, 64).cuda().to(memory_format=torch.channels_last)
    images = torch.randn(16, channels, height, width, device="cuda").to(memory_format=torch.channels_last)
    return layer, images.requires_grad_()


def step(run, layer, images, dtype):
    """The result in half precision by autocast, or in float64, and the gradients of weights and images."""
    if dtype == torch.float64:
        layer, images = copy.deepcopy(layer).double(), images.double()
    with torch.autocast("cuda", dtype, enabled=dtype != torch.float64):
        result = run(layer, images)
    # Powers of two: rounded to no dtype.
    gradient = torch.exp2(torch.arange(result.numel(), device="cuda") % 5 - 2.0).view_as(result).to(dtype)
    return [result, *torch.autograd.grad(result, (layer.weight, images), gradient)]


@torch.no_grad()
def errors(tensors, exact):
    return [float((a.double() - b).norm() / b.double().norm()) for a, b in zip(tensors, exact, strict=True)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_its_error_is_no_larger_than_that_of_pytorch_s(calls, channels, dtype):
    layer, images = layer_and_images(channels)
    exact = step(nn.Conv2d.forward, layer, images, torch.float64)
    assert not calls
    rearranged = step(Stem.forward, layer, images, dtype)
    assert len(calls) == 1 and rearranged[0].dtype == dtype
    assert [tensor.dtype for tensor in rearranged[1:]] == [torch.float32, torch.float32]
    usual = step(nn.Conv2d.forward, layer, images, dtype)
    for error, theirs in zip(errors(rearranged, exact), errors(usual, exact), strict=True):
        assert error <= 1.2 * theirs + 1e-6


def test_float32_and_odd_sides_are_pytorch_s(calls):
    layer, images = layer_and_images(height=63)
    torch.testing.assert_close(layer(images), nn.Conv2d.forward(layer, images))
    with torch.autocast("cuda", torch.bfloat16):
        torch.testing.assert_close(layer(images), nn.Conv2d.forward(layer, images))
    layer, images = layer_and_images()
    layer(images)
    with torch.autocast("cuda", torch.bfloat16):
        layer.double()(images.double())
    assert not calls


def test_a_cuda_graph_replays_it(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    layer, images = layer_and_images()

    def both_passes(images):
        images = images.detach().requires_grad_()
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            result = layer(images)
        (gradient,) = torch.autograd.grad(result.square().sum(), images)
        return result.detach(), gradient

    rules.a_graph_replays_it_on_new_values(both_passes, [images], torch.randn_like(images))


@compiler
@pytest.mark.parametrize("autocast", [True, False])
def test_torch_compile_runs_it_whole(autocast):
    torch._dynamo.reset()
    layer, images = layer_and_images()
    if not autocast:
        layer, images = layer.bfloat16(), images.detach().bfloat16().requires_grad_()
    results = []
    for run in (layer, torch.compile(layer, fullgraph=True)):
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            result = run(images)
        results.append([result, *torch.autograd.grad(result.square().sum(), (layer.weight, images))])
    eager, compiled = results
    assert compiled[0].is_contiguous(memory_format=torch.channels_last)
    assert max(errors(compiled, eager)) <= 1e-2
