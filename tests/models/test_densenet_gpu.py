"""DenseNets on a GPU: by the kernels and by PyTorch's modules the losses, the gradients and the statistics are one."""

import copy

import pytest
import torch
from torch.nn import functional

import models
from cuda_ext import library
from models.layers import fusing

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
NETWORKS = {
    "densenet": ({"depth": 40, "growth_rate": 12}, 32),
    "densenet_imagenet": ({"depth": "121", "growth_rate": 16}, 64),
}
# PyTorch's compiler uses what PyTorch deprecates.
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
BLOCKS = {"densenet": 3, "densenet_imagenet": 4}


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def network(name, **settings):
    torch.manual_seed(0)
    given, size = NETWORKS[name]
    arrays = {"images": {"shape": [100, size, size, 3]}}
    description = {"name": "pictures", "kind": "image", "classes": list(range(10)), "arrays": arrays}
    built = models.build(name, {**given, **settings}, description).cuda().to(memory_format=torch.channels_last)
    return built, torch.randn(16, 3, size, size, device="cuda").to(memory_format=torch.channels_last)


def step(network, images, fused, dtype):
    """Loss, gradients and statistics after one step, in float64."""
    network = copy.deepcopy(network)
    if dtype == torch.float64:
        network, images = network.double(), images.double()
    with fusing.by_modules(not fused):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = functional.cross_entropy(network(images), torch.arange(16, device="cuda") % 10)
        loss.backward()
    parts = [loss.detach()[None]], [p.grad for p in network.parameters()], list(network.buffers())
    return [torch.cat([tensor.double().flatten() for tensor in part]) for part in parts]


def errors(tensors, exact):
    return [float((a - b).norm() / b.norm()) for a, b in zip(tensors, exact, strict=True)]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("activation", ["swish", "swish_beta", "gelu"])
def test_in_float32_a_step_is_that_of_pytorch_s_modules(name, activation):
    built, images = network(name, activation={"name": activation})
    exact = step(built, images, False, torch.float64)
    fused = step(built, images, True, torch.float32)
    plain = step(built, images, False, torch.float32)
    for error, usual, difference in zip(errors(fused, exact), errors(plain, exact), errors(fused, plain), strict=True):
        assert error <= max(1e-5, 2 * usual)
        assert difference <= max(2e-5, 3 * usual)
    double = step(built, images, True, torch.float64)
    assert max(errors(double, exact)) <= 1e-10


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("activation", ["relu", "swish", "gelu"])
def test_in_bfloat16_its_error_is_no_larger_than_that_of_pytorch_s_modules(name, activation):
    built, images = network(name, activation={"name": activation})
    exact = step(built, images, False, torch.float64)
    fused = errors(step(built, images, True, torch.bfloat16), exact)
    plain = errors(step(built, images, False, torch.bfloat16), exact)
    assert fused[0] <= max(2e-2, 2 * plain[0])
    assert fused[1] <= 1.3 * plain[1]
    assert fused[2] <= max(1e-2, 1.3 * plain[2])


@pytest.mark.parametrize("name", NETWORKS)
def test_in_evaluation_it_goes_by_the_running_statistics(name):
    built, images = network(name, activation={"name": "swish"})
    built(images)
    built.eval()
    fused = step(built, images, True, torch.float32)
    assert max(errors(fused, step(built, images, False, torch.float64))) <= 1e-4
    with torch.no_grad():
        torch.testing.assert_close(built(images[:1]), built(images)[:1], rtol=1e-4, atol=1e-5)


def test_dropout_and_odd_sizes_take_the_modules_one_by_one():
    built, images = network("densenet", dropout=0.2)
    built(images[:, :, :31, :29]).sum().backward()
    assert all(parameter.grad is not None for parameter in built.parameters())
    built.eval()
    assert torch.isfinite(built(images[:, :, :31, :29])).all()


def test_a_cuda_graph_replays_the_whole_step():
    built, images = network("densenet")
    optimizer = torch.optim.SGD(built.parameters(), 0.01, momentum=0.9, nesterov=True)
    other = copy.deepcopy(built)
    labels = torch.arange(16, device="cuda") % 10

    def run(network, optimizer):
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        run(built, optimizer)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        run(built, optimizer)
    others = torch.optim.SGD(other.parameters(), 0.01, momentum=0.9, nesterov=True)
    run(other, others)
    for _ in range(2):
        images.normal_()
        graph.replay()
        run(other, others)
    for a, b in zip(built.state_dict().values(), other.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NETWORKS)
@compiler
def test_torch_compile_trains_the_network_whole_by_the_kernels(name):
    torch._dynamo.reset()
    built, images = network(name, activation={"name": "swish_beta"})
    graphs = []

    def counted(graph, inputs):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph.forward

    torch.compile(copy.deepcopy(built), fullgraph=True, backend=counted)(images)
    assert len(graphs) == 1 and sum("dense_block" in target for target in graphs[0]) == BLOCKS[name]
    results = []
    for compiled in (False, True):
        own = copy.deepcopy(built)
        run = torch.compile(own, fullgraph=True) if compiled else own
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(run(images), torch.arange(16, device="cuda") % 10)
        loss.backward()
        results.append([loss.detach(), *(p.grad for p in own.parameters()), *own.buffers()])
    eager, by_compiler = (torch.cat([tensor.double().flatten() for tensor in tensors]) for tensors in results)
    assert float((by_compiler - eager).norm()) <= 5e-2 * float(eager.norm())


@compiler
def test_aotinductor_runs_the_network_by_the_kernels_for_any_batch(tmp_path):
    built, images = network("densenet")
    built(images)
    built.eval()
    exported = torch.export.export(built, (images,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    names = [str(node.target) for node in exported.graph.nodes]
    assert names.count("reread_kernels.dense_block.default") == BLOCKS["densenet"]
    package = torch._inductor.aoti_compile_and_package(exported, package_path=str(tmp_path / "densenet.pt2"))
    compiled = torch._inductor.aoti_load_package(package)
    with torch.no_grad():
        for batch in (images, images[:5]):
            torch.testing.assert_close(compiled(batch), built(batch), rtol=1e-4, atol=1e-4)
