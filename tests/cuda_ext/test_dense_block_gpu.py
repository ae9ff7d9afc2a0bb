"""The dense block on a GPU: against its layers in float64, captured, compiled, exported and ahead of time."""

import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from cuda_ext import library
from cuda_ext.dense_block import Halves, dense_block
from tests.cuda_ext import rules
from tests.cuda_ext.test_dense_block import one_by_one

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# PyTorch's compiler uses what PyTorch deprecates.
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYERS = 3
# inputs, growth, bottleneck: by the dense_product kernels (half precision), with padded growth and inputs; with more
# outputs than they take.
SHAPES = {"fits": (24, 12, 48), "wide": (64, 32, 128), "odd": (5, 3, 12)}
LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def given(shape, dtype, batch=6):
    """x, and the parameters in one list: weights, biases, kernels. Parameters are float32, as autocast has them."""
    inputs, growth, bottleneck = SHAPES[shape]
    torch.manual_seed(0)
    widths = [width for layer in range(LAYERS) for width in (inputs + layer * growth, bottleneck)]
    kernels = []
    for at, width in enumerate(widths):
        kernel = torch.randn((growth, width, 3, 3) if at % 2 else (bottleneck, width, 1, 1), device="cuda")
        kernels.append(kernel / kernel[0].numel() ** 0.5)
    weights, biases = ([torch.rand(width, device="cuda") + low for width in widths] for low in (0.5, -0.5))
    x = torch.randn(batch, inputs, 9, 7, device="cuda").to(dtype, memory_format=torch.channels_last)
    return [x, *weights, *biases, *kernels]


def halves_of(tensors):
    weights, biases, kernels = (list(tensors[at : at + 2 * LAYERS]) for at in range(0, 6 * LAYERS, 2 * LAYERS))
    running = ([function(weight).detach() for weight in weights] for function in (torch.zeros_like, torch.ones_like))
    return Halves(weights, biases, None, kernels, *running)


def trained(x, *tensors):
    return dense_block(x, halves_of(tensors), training=True, activation="swish")[0]


def both_passes(x, *tensors):
    wanted = [tensor.detach().requires_grad_() for tensor in (x, *tensors)]
    y = trained(*wanted)
    return y.detach(), *torch.autograd.grad(y.float().square().sum(), wanted)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", LARGEST_ERROR, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_its_layers_one_by_one_in_float64(shape, dtype, training):
    inputs = given(shape, dtype)
    results = []
    for function, kind in ((dense_block, None), (one_by_one, torch.float64)):
        own = [tensor.to(kind or tensor.dtype).detach().requires_grad_() for tensor in inputs]
        halves = halves_of(own[1:])
        y = function(own[0], halves, training=training, activation="swish")
        y = y[0] if function is dense_block else y
        gradients = torch.autograd.grad(y.double().square().sum(), own)
        results.append((y, *gradients, *halves.running_means, *halves.running_variances))
    found, exact = results
    for a, b in zip(found, exact, strict=True):
        a, b = a.detach().double(), b.detach()
        assert a.shape == b.shape
        assert float((a - b).norm()) <= LARGEST_ERROR[dtype] * float(b.norm()) + 1e-7


def test_fifty_runs_give_the_same_bits():
    rules.fifty_runs_give_the_same_bits(both_passes, given("fits", torch.bfloat16))


@pytest.mark.parametrize("shape", ["fits", "wide"])
def test_a_cuda_graph_and_another_stream_replay_it(shape):
    inputs = given(shape, torch.bfloat16)
    changed = torch.randn_like(inputs[0])
    rules.a_graph_replays_it_on_new_values(both_passes, inputs, changed)
    rules.it_runs_on_the_current_stream(trained, inputs, torch.randn_like(changed))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@compiler
def test_torch_compile_takes_both_passes_whole(dtype):
    torch._dynamo.reset()
    inputs = given("fits", dtype)
    above = torch.randn_like(trained(*inputs))

    def surrounded(x, *others):
        return trained(x * 1.25, *others).sin()

    results = []
    for function in (surrounded, torch.compile(surrounded, fullgraph=True)):
        own = [tensor.detach().requires_grad_() for tensor in inputs]
        y = function(*own)
        results.append((y, *torch.autograd.grad(y, own, above)))
    for a, b in zip(*results, strict=True):
        a, b = a.detach().double(), b.detach().double()
        assert float((a - b).norm()) <= 2e-2 * float(a.norm())


class Block(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.x, *tensors = given("fits", dtype)
        self.trained = nn.ParameterList(tensors)
        halves = halves_of(tensors)
        self.running = nn.ParameterList([*halves.running_means, *halves.running_variances]).requires_grad_(False)

    def forward(self, x):
        count = 2 * LAYERS
        weights, biases, kernels = (list(self.trained[at : at + count]) for at in range(0, 3 * count, count))
        halves = Halves(weights, biases, None, kernels, list(self.running[:count]), list(self.running[count:]))
        return dense_block(x, halves, training=False)[0].relu()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@compiler
def test_exported_it_runs_ahead_of_time_for_any_batch_and_on_a_cpu(dtype, tmp_path, monkeypatch):
    block = Block(dtype)
    exported = torch.export.export(block, (block.x,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    assert "cuda_ext.dense_block.default" in {str(node.target) for node in exported.graph.nodes}
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "block.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    with torch.no_grad():
        for x in (block.x, given("fits", dtype, batch=11)[0]):
            expected = block(x)
            torch.testing.assert_close(compiled(x), expected, rtol=1e-3, atol=1e-3)
            assert torch.equal(exported.module()(x), expected)
        monkeypatch.setattr(library, "_strict", False)
        on_cpu = move_to_device_pass(exported, "cpu").module()(block.x.cpu())
    expected = block(block.x).detach().cpu()
    assert float((on_cpu - expected).double().norm()) <= LARGEST_ERROR[dtype] * float(expected.double().norm())
