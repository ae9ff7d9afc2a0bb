"""DenseNet-BC against the paper's figures, and the settings that it refuses."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import models
from cuda_ext import batch_norm_activation as fused
from cuda_ext import library
from models.activations import REGISTRY, make_activation
from models.activations.swish import Swish
from models.layers import dense, fusing, kernels, max_pooling, norm_activation, parameter_count
from reread.storage.errors import InputError

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


@pytest.mark.parametrize(("name", "trained"), [("relu", 0), ("swish", 0), ("swish_beta", 21)])
def test_swish_beta_trains_one_beta_a_layer(name, trained):
    """Depth 22 has 3 blocks of 3 layers of 2, 2 transitions and the last norm: 21 activations."""
    network = models.build("densenet", {"depth": 22, "activation": {"name": name}}, description())
    betas = [module.beta for module in network.modules() if isinstance(module, Swish) and module.beta is not None]
    assert len(betas) == trained and all(beta.shape == () and beta == 1 for beta in betas)
    assert kernels(network).startswith("reference (the tensors are on the cpu")
    network(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(beta.grad is not None and beta.grad != 0 for beta in betas)


def test_imagenet_s_divides_images_by_32_and_refuses_smaller_ones():
    network = models.build("densenet_imagenet", {"depth": "13", "growth_rate": 4}, description(64)).eval()
    images = torch.randn(2, 3, 64, 64)
    assert network.body(images).shape[2:] == (2, 2)
    assert network(images).shape == (2, 10)
    with pytest.raises(InputError, match="28 x 28 pixels are too small for densenet_imagenet"):
        models.build("densenet_imagenet", {}, description(size=28))


@pytest.fixture
def by_references(monkeypatch):
    """The path that a GPU takes, with the kernels' references in their place."""
    monkeypatch.setattr(library, "_strict", False)
    for layer in (norm_activation, max_pooling):
        monkeypatch.setattr(layer, "has_kernel", lambda operation, x: not fusing._by_modules)


@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
@pytest.mark.parametrize(
    ("name", "training", "activation"),
    [
        ("densenet", True, "relu"),
        ("densenet", True, "swish_beta"),
        ("densenet", False, "swish"),
        ("densenet_imagenet", True, "swish"),
    ],
)
def test_a_block_over_one_buffer_gives_the_losses_gradients_and_statistics_of_its_modules(
    by_references, name, training, activation
):
    size, settings = (9, {"depth": 16}) if name == "densenet" else (33, {"depth": "13"})
    torch.manual_seed(0)
    network = models.build(
        name, {**settings, "growth_rate": 3, "activation": {"name": activation}}, description(size)
    ).double()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            for vector in (module.weight, module.running_var):
                torch.nn.init.uniform_(vector, 0.5, 2)
            for vector in (module.bias, module.running_mean):
                torch.nn.init.normal_(vector)
    images = torch.randn(3, 3, size, size, dtype=torch.float64)
    results = []
    for by_modules in (True, False):
        own = copy.deepcopy(network).train(training)
        with fusing.by_modules(by_modules):
            logits = own(images)
        logits.square().sum().backward()
        results.append([logits, *(parameter.grad for parameter in own.parameters()), *own.buffers()])
        if not training:
            with torch.no_grad(), fusing.by_modules(by_modules):
                assert torch.equal(own(images), logits)
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_the_network_is_compiled_and_exported_with_its_blocks_as_operations(by_references):
    network = models.build("densenet", {"depth": 10, "growth_rate": 4}, description(8))
    same, images = copy.deepcopy(network), torch.randn(4, 3, 8, 8)
    torch._dynamo.reset()
    compiled = torch.compile(network, fullgraph=True, backend="aot_eager")
    for logits in (compiled(images), same(images)):
        logits.square().sum().backward()
    for parameter, expected in zip(network.parameters(), same.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad)
    for buffer, expected in zip(network.buffers(), same.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected)
    exported = torch.export.export(same.eval(), (images,), dynamic_shapes=({0: torch.export.Dim.AUTO},))
    names = [str(node.target) for node in exported.graph.nodes]
    for operation in ("dense_block", "batch_norm_activation"):
        assert names.count(f"reread_kernels.{operation}.default") == 3
    with torch.no_grad():
        assert torch.equal(exported.module()(images[:3]), same(images[:3]))


@pytest.mark.parametrize("fits", [True, False])
def test_a_trace_asks_once_whether_the_kernels_run(monkeypatch, fits):
    asked = []
    monkeypatch.setattr(library, "runs", lambda *given: asked.append(given) or fits)
    monkeypatch.setattr(
        norm_activation, "has_kernel", lambda operation, x: fusing._compiled_for(operation, x.device, x.dtype)
    )
    monkeypatch.setattr(fused, "kernel", lambda *given: None)
    network = norm_activation.NormActivation(3, {"name": "relu"})
    torch._dynamo.reset()
    graphs = []

    def counted(graph, inputs):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph.forward

    compiled = torch.compile(network, fullgraph=True, backend=counted)
    for _ in range(2):
        compiled(torch.randn(2, 3, 4, 4))
    assert asked == [("batch_norm_activation", torch.device("cpu"), torch.float32)]
    assert any("batch_norm_activation" in target for target in graphs[0]) == fits


@pytest.mark.parametrize("activate", [nn.ReLU(), None])
def test_without_a_kernel_the_result_is_pooled_too(activate):
    norm, x = nn.BatchNorm2d(3), torch.randn(2, 3, 5, 4)
    expected = functional.avg_pool2d(norm(x) if activate is None else activate(norm(x)), 2)
    assert torch.equal(norm_activation.norm_activation(norm, activate, x, pooled=True), expected)


@pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
def test_norms_that_are_not_alike_and_single_rows_take_the_modules(by_references):
    network = models.build("densenet", {"depth": 10, "growth_rate": 4}, description(4))
    network.body[1].bottleneck[0].eval()
    images = torch.randn(2, 3, 4, 4)
    first = copy.deepcopy(network)
    with fusing.by_modules():
        expected = first(images)
    torch.testing.assert_close(network(images), expected)
    with torch.no_grad(), fusing.by_modules(False):
        assert network.eval()(images[:1]).shape == (1, 10)


@pytest.mark.parametrize(
    "unlike", [{"affine": False}, {"track_running_stats": False}, {"momentum": None}], ids=lambda unlike: min(unlike)
)
@pytest.mark.parametrize("place", [-2, "bottleneck"])
def test_norms_that_the_kernel_does_not_compute_take_the_modules(by_references, place, unlike):
    network = models.build("densenet", {"depth": 10, "growth_rate": 4}, description(8))
    modules, index = (network.body[1].bottleneck, 0) if place == "bottleneck" else (network.body, place)
    modules[index] = torch.nn.BatchNorm2d(modules[index].num_features, **unlike)
    same, images = copy.deepcopy(network), torch.randn(4, 3, 8, 8)
    for training in (True, False):
        logits = network.train(training)(images)
        with fusing.by_modules():
            torch.testing.assert_close(logits, same.train(training)(images))
    for buffer, other in zip(network.buffers(), same.buffers(), strict=True):
        torch.testing.assert_close(buffer, other)


def test_synchronised_norms_are_not_computed_by_one_process_alone(by_references):
    network = models.build("densenet", {"depth": 10, "growth_rate": 4}, description(8))
    network = torch.nn.SyncBatchNorm.convert_sync_batchnorm(network)
    ran = []
    norms = [module for module in network.modules() if isinstance(module, torch.nn.SyncBatchNorm)]
    for norm in norms:
        norm.register_forward_hook(lambda module, *_: ran.append(module))
    network(torch.randn(4, 3, 8, 8))
    assert len(norms) == 9 and set(ran) == set(norms)


def named(name, **settings):
    return {"name": name, **settings}


WITH_KERNEL = {"relu": "relu", "gelu": "gelu", "swish": "swish", "swish_beta": "swish"}
BY_HAND = {
    "relu": lambda x: x.clamp(min=0),
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "elu": lambda x: torch.where(x > 0, x, x.exp() - 1),
    "gelu": lambda x: x * 0.5 * (1 + torch.erf(x / 2**0.5)),
    "softplus": lambda x: (1 + x.exp()).log(),
    "mish": lambda x: x * (1 + x.exp()).log().tanh(),
    "swish": lambda x: x * x.sigmoid(),
    "swish_beta": lambda x: x * x.sigmoid(),
}


@pytest.mark.parametrize("name", REGISTRY.available())
def test_an_activation_is_what_its_name_says(name):
    x = torch.linspace(-3, 3, 24).reshape(2, 3, 2, 2)
    built = make_activation({"name": name}, 3)
    torch.testing.assert_close(built(x), BY_HAND[name](x))
    assert built.kernel == WITH_KERNEL.get(name)


@pytest.mark.parametrize(
    "activation",
    [
        *({"name": name} for name in REGISTRY.available()),
        {"name": "swish_beta", "per": "channel"},
        {"name": "gelu", "approximate": "tanh"},
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["densenet", "densenet_imagenet"])
def test_no_activation_runs_as_another_where_kernels_are(by_references, name, activation):
    """On a GPU each but ReLU ran as Swish."""
    size, settings = (8, {"depth": 10}) if name == "densenet" else (33, {"depth": "13"})
    torch.manual_seed(0)
    network = models.build(name, {**settings, "growth_rate": 3, "activation": activation}, description(size)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim < 2:
                parameter.add_(0.5 * torch.rand_like(parameter))
    images = torch.randn(3, 3, size, size, dtype=torch.float64)
    logits = network(images)
    with fusing.by_modules():
        torch.testing.assert_close(network(images), logits, rtol=1e-9, atol=1e-9)
    kernel = activation["name"] in WITH_KERNEL and len(activation) == 1
    pools = name == "densenet_imagenet"
    assert kernels(network).startswith("reference") == (kernel or pools or activation["name"] == "swish_beta")


def test_swish_beta_per_channel_trains_a_beta_of_each():
    settings = {"depth": 10, "growth_rate": 4, "activation": {"name": "swish_beta", "per": "channel"}}
    network = models.build("densenet", settings, description(8))
    pairs = [(module[0], module[1]) for module in network.modules() if isinstance(module, dense.Composite)]
    assert pairs and all(activate.beta.shape == (norm.num_features,) for norm, activate in pairs)
    network(torch.randn(4, 3, 8, 8)).square().sum().backward()
    assert all(activate.beta.grad.abs().min() > 0 for _, activate in pairs)
