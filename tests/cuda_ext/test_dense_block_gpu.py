"""The dense block on a GPU: against its layers in float64, captured, compiled, exported and ahead of time."""

import pytest
import torch
from torch import nn
from torch.export.passes import move_to_device_pass

from cuda_ext import batch_norm_activation as fused
from cuda_ext import library
from cuda_ext.dense_block import Halves, _pack, dense_block
from cuda_ext.dense_block.cases import halves_of, parameters
from tests.cuda_ext import rules
from tests.cuda_ext.test_dense_block import one_by_one

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# PyTorch's compiler uses what PyTorch deprecates.
compiler = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
LAYERS = 3
# inputs, growth, bottleneck: by the dense_product kernels (half precision), with padded growth and inputs; with outputs
# that only warpgroups take, and more growth than the dense_convolution kernels do.
SHAPES = {"fits": (24, 12, 48), "wide": (64, 32, 128), "odd": (5, 3, 12)}
PRODUCTS = ("dense_product", "dense_product_backward")
LARGEST_ERROR = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}


@pytest.fixture(autouse=True)
def exact_convolutions(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def given(shape, dtype, batch=6):
    """x, and the parameters in one list: weights, biases, kernels. Parameters are float32, as autocast has them."""
    torch.manual_seed(0)
    inputs = SHAPES[shape][0]
    tensors = parameters(LAYERS, *SHAPES[shape])
    return [torch.randn(batch, inputs, 9, 7, device="cuda").to(dtype, memory_format=torch.channels_last), *tensors]


def trained(x, *tensors):
    return dense_block(x, halves_of(tensors), training=True, activation="swish")[0]


def both_passes(x, *tensors):
    wanted = [tensor.detach().requires_grad_() for tensor in (x, *tensors)]
    y = trained(*wanted)
    return y.detach(), *torch.autograd.grad(y.float().square().sum(), wanted)


# images: few pixels, and so many that the kernels' blocks take more of them.
@pytest.mark.parametrize(("shape", "batch"), [*((shape, 6) for shape in SHAPES), ("fits", 160)])
@pytest.mark.parametrize("dtype", LARGEST_ERROR, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_it_is_its_layers_one_by_one_in_float64(shape, batch, dtype, training):
    inputs = given(shape, dtype, batch)
    results = []
    for function, kind in ((dense_block, None), (one_by_one, torch.float64)):
        own = [tensor.to(kind or tensor.dtype).detach().requires_grad_() for tensor in inputs]
        halves = halves_of(own[1:])
        y = function(own[0], halves, training=training, activation="swish")
        y = y[0] if function is dense_block else y
        gradients = torch.autograd.grad(y.double().square().sum(), own)
        results.append((y, *gradients, *halves.running_means, *halves.running_variances))
    of_block, exact = results
    for a, b in zip(of_block, exact, strict=True):
        a, b = a.detach().double(), b.detach()
        assert a.shape == b.shape
        assert float((a - b).norm()) <= LARGEST_ERROR[dtype] * float(b.norm()) + 1e-7


# images, height, width, channels, growth: lines that fill no tile, many small images in one, images of one line or
# pixel, growth that is no multiple of 8; and the same of more pixels, for blocks of 256.
IMAGES = [
    (3, 9, 7, 48, 12), (1, 1, 1, 8, 1), (300, 1, 1, 40, 10), (2, 1, 64, 64, 16), (2, 3, 40, 56, 6), (9, 8, 8, 48, 12),
    (2, 32, 32, 48, 12), (50, 7, 7, 64, 16), (2, 17, 14, 24, 8), (2, 56, 56, 48, 3),
    (9, 31, 33, 48, 12), (9000, 1, 1, 40, 10), (140, 1, 64, 64, 16), (70, 16, 16, 48, 12), (200, 7, 7, 64, 16),
    (3, 56, 56, 56, 6),
]  # fmt: skip


def convolution(shape, dtype, offset=0.0):
    """x, dy, filters and a norm of x's own statistics; ``offset`` is added to one pixel's channels."""
    images, height, width, channels, growth = shape
    torch.manual_seed(0)
    rows, padded = images * height * width, -(-growth // 8) * 8
    x = torch.randn(rows, channels, device="cuda") + torch.randn(channels, device="cuda")
    x[rows // 2] += offset
    filters, dy = torch.zeros(padded, 3, 3, channels, device="cuda"), torch.zeros(rows, padded, device="cuda")
    filters[:growth] = torch.randn(growth, 3, 3, channels, device="cuda") / (9 * channels) ** 0.5
    dy[:, :growth] = torch.randn(rows, growth, device="cuda")
    x, filters, dy = (tensor.to(dtype) for tensor in (x, filters, dy))
    variance, mean = torch.var_mean(x.float(), 0, correction=0)
    weight, bias = torch.rand(2, channels, device="cuda") + 0.5
    return x, filters, dy, (weight, bias - 1, mean, variance)


def close(result, exact, error):
    assert result.shape == exact.shape
    assert float((result.double() - exact).norm()) <= error * float(exact.norm()) + 1e-6


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("activation", "beta"), [("none", None), ("relu", None), ("swish", None), ("swish", 1.3)])
def test_the_3x3_convolution_is_its_reference_for_any_images(shape, dtype, activation, beta):
    _, *sides, _, growth = shape
    x, filters, dy, vectors = convolution(shape, dtype)
    beta = None if beta is None else torch.tensor(beta, device="cuda")
    norm = (*vectors, beta, fused.ACTIVATIONS.index(activation), 1e-5)
    exact_norm = [value.double() if isinstance(value, torch.Tensor) else value for value in norm]
    exact_x, exact_filters, exact_dy = x.double(), filters.double(), dy.double()
    error = LARGEST_ERROR[dtype]

    def buffers(kind):
        y = torch.full((len(x), growth + 12), torch.nan, device="cuda", dtype=kind)
        computed = torch.float64 if kind == torch.float64 else torch.float32
        statistics = torch.full((2, growth), torch.nan, device="cuda", dtype=computed)
        return y, y[:, 4 : 4 + growth], *statistics

    (whole, y, mean, variance), (_, exact_y, *exact_statistics) = buffers(dtype), buffers(torch.float64)
    fused.part("dense_convolution", x)(x, filters, *norm, *sides, y, mean, variance, True)
    fused.REFERENCES["dense_convolution"](exact_x, exact_filters, *exact_norm, *sides, exact_y, *exact_statistics, True)
    close(y, exact_y, error)
    assert whole[:, :4].isnan().all() and whole[:, 4 + growth :].isnan().all()
    exact_variance, exact_mean = torch.var_mean(y.double(), 0, correction=0)
    close(mean, exact_mean, 1e-5)
    close(variance, exact_variance, 1e-5)

    gradients = fused.part("dense_convolution_backward", x)(dy, filters, x, *norm, True, *sides, growth)
    exact = (exact_dy, exact_filters, exact_x, *exact_norm, True, *sides, growth)
    for a, b in zip(gradients, fused.REFERENCES["dense_convolution_backward"](*exact), strict=True):
        close(a, b, error)


# columns of wider rows: growth and where they begin, on 8 bytes, on 4 and on 2.
@pytest.mark.parametrize(("growth", "begin"), [(12, 24), (12, 150), (6, 8), (3, 5)])
@pytest.mark.parametrize("shape", [(3, 9, 7, 48), (2, 32, 32, 64)], ids=str)
def test_the_3x3_convolution_finishes_its_gradient_as_the_reference_does(shape, growth, begin):
    _, *sides, _ = shape
    x, filters, _, vectors = convolution((*shape, growth), torch.bfloat16)
    norm = (*vectors, None, fused.ACTIVATIONS.index("relu"), 1e-5)
    wide, wide_y = torch.randn(2, len(x), 192, device="cuda").bfloat16()
    own = slice(begin, begin + growth)
    behind = [torch.randn(growth, device="cuda") for _ in range(3)]
    back = fused.part("dense_convolution_backward", x)
    computed = back(wide[:, own], filters, x, *norm, True, *sides, growth, wide_y[:, own], *behind)
    whole = fused.REFERENCES["centred_gradient"](wide[:, own], wide_y[:, own], *behind, len(filters))
    for a, b in zip(computed, back(whole, filters, x, *norm, True, *sides, growth), strict=True):
        close(a, b.double(), 1e-2)


@pytest.mark.parametrize("outputs", [48, 128])
def test_padding_of_an_infinite_activation_adds_nothing_to_a_gradient(outputs):
    """Of float16 a channel that is constant and far from zero: its norm sends the zeros of padding rows to infinity."""
    x, dy = torch.full((70, 48), -300.0, device="cuda").half(), torch.ones(70, outputs, device="cuda").half()
    w, zeros, ones = (
        torch.ones(outputs, 48, device="cuda").half(),
        *torch.tensor([[0.0], [1.0]], device="cuda").repeat(1, 48),
    )
    norm = (ones, zeros, zeros - 300, zeros, None, fused.ACTIVATIONS.index("relu"), 1e-5, True)
    given = (dy, None, None, None, None, w, x, *norm, torch.zeros_like(x), *torch.zeros(2, 48, device="cuda"))
    to_w, *others = fused.part("dense_product_backward", x)(*given)
    assert not to_w.any()
    assert all(gradient.isfinite().all() for gradient in others)


@pytest.mark.parametrize("outputs", [48, 128])
@pytest.mark.parametrize("rows", [1, 2, 5])
def test_statistics_of_few_rows_are_those_of_the_rows(rows, outputs):
    """Their sums start from the middle one of three rows, and padding is no row: of float16 it would be infinite."""
    x, zeros = torch.full((rows, outputs), -300.0, device="cuda").half(), torch.zeros(outputs, device="cuda")
    x += torch.arange(rows, device="cuda")[:, None].half()
    norm = (zeros + 1, zeros, zeros - 300, zeros, None, fused.ACTIVATIONS.index("relu"), 1e-5)
    y, mean, variance = fused.part("dense_product", x)(x, torch.eye(outputs, device="cuda").half(), *norm, True)
    exact_variance, exact_mean = torch.var_mean(y.double(), 0, correction=0)
    close(mean, exact_mean, 1e-5)
    close(variance, exact_variance, 1e-5)


# rows, outputs, channels: few rows, tiles with a rest, and rows for large blocks; channels that fill no eight, in one
# group and in several; weights that stay in shared memory and that do not.
@pytest.mark.parametrize("rows", [3, 65, 700, 13_000, 60_000])
@pytest.mark.parametrize(("outputs", "channels"), [(48, 36), (72, 5), (96, 64), (128, 130), (128, 300), (128, 992)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("activation", "beta"), [("relu", None), ("swish", 1.3)])
def test_the_product_is_its_reference(rows, outputs, channels, dtype, activation, beta):
    torch.manual_seed(0)
    width, padded = channels + 40, -(-channels // 8) * 8
    # Past the channels lies what others wrote.
    buffer = torch.full((rows, -(-width // 8) * 8), torch.nan, device="cuda", dtype=dtype)
    total = torch.randn_like(buffer, dtype=torch.float32).to(dtype)
    x = buffer[:, :channels]
    x.copy_(torch.randn(rows, channels, device="cuda") + torch.randn(channels, device="cuda"))
    w = torch.zeros(outputs, padded, device="cuda", dtype=dtype)
    w[:, :channels] = torch.randn(outputs, channels, device="cuda") / channels**0.5
    dy, y = torch.randn(2, rows, outputs, device="cuda").to(dtype)
    weight, bias = torch.rand(2, channels, device="cuda") + 0.5
    beta = None if beta is None else torch.tensor(beta, device="cuda")
    variance, mean = torch.var_mean(x.float(), 0, correction=0)
    norm = (weight, bias - 1, mean, variance, beta, fused.ACTIVATIONS.index(activation), 1e-5)
    behind = (y, *torch.rand(3, outputs, device="cuda"))
    results = []
    for kind in (None, torch.float64):
        parts = {name: fused.part(name, x) if kind is None else fused.REFERENCES[name] for name in PRODUCTS}
        own = [value if kind is None or not isinstance(value, torch.Tensor) else value.to(kind) for value in norm]
        a, b, c, d, *e = (tensor.clone() if kind is None else tensor.to(kind) for tensor in (x, w, dy, total, *behind))
        if kind is None:
            a = x
        result = list(parts["dense_product"](a, b, *own, True))
        for finish in ((None,) * 4, e):
            into, (slope, offset) = d.clone(), torch.ones(2, channels, device="cuda", dtype=own[0].dtype)
            given = (c, *finish, b, a, *own, True, into[:, :channels], slope, offset)
            result += [*parts["dense_product_backward"](*given), into[:, :channels], slope, offset]
            assert torch.equal(into[:, padded:], d[:, padded:])
        results.append(result)
    for of_kernel, exact in zip(*results, strict=True):
        close(of_kernel, exact, LARGEST_ERROR[dtype])


@pytest.mark.parametrize("outputs", [48, 128])
@pytest.mark.parametrize("channels", [24, 36, 60, 72, 204])
def test_the_product_adds_to_a_gradient_where_it_lies(channels, outputs):
    torch.manual_seed(0)
    x, above = torch.randn(2, 1000, 256, device="cuda").bfloat16()
    dy = torch.randn(1000, outputs, device="cuda").bfloat16()
    w = torch.randn(outputs, -(-channels // 8) * 8, device="cuda").bfloat16()
    norm = (*torch.rand(4, channels, device="cuda"), None, fused.ACTIVATIONS.index("relu"), 1e-5, True)
    results = []
    for added in (False, True):
        total = torch.full_like(x, torch.nan) if added else above.clone()
        slope, offset = torch.zeros(2, channels, device="cuda")
        own = slice(0, channels)
        given = (dy, None, None, None, None, w, x[:, own], *norm, total[:, own], slope, offset)
        gradients = fused.part("dense_product_backward", x)(*given, *([above[:, own]] if added else []))
        results.append([total[:, own], slope, offset, *gradients])
        # Columns are written by eights.
        assert total[:, -(-channels // 8) * 8 :].isnan().all() == added
    for a, b in zip(*results, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_the_weights_are_packed_as_the_reference_packs_them(dtype, memory):
    # More kernels than the shorter list of one launch holds.
    torch.manual_seed(0)
    sizes = [size for channels in range(5, 5 + 3 * 40, 3) for size in ((40, channels, 1, 1), (3, 40, 3, 3))]
    kernels = [torch.randn(size).to(memory_format=memory) for size in sizes]
    x = torch.empty(0, dtype=dtype)
    packed = torch.ops.reread_kernels_compiled.dense_weights(x.cuda(), [kernel.cuda() for kernel in kernels])
    assert torch.equal(packed.cpu(), _pack(x, kernels))


@pytest.mark.parametrize("offset", [0.0, 3e4])
def test_one_pixel_far_from_the_others_costs_the_new_statistics_no_digits(offset):
    shape = (4, 32, 32, 48, 12)
    x, filters, _, (weight, bias, *_) = convolution(shape, torch.bfloat16, offset)
    zeros, ones = torch.zeros_like(weight), torch.ones_like(weight)
    y, (mean, variance) = torch.empty(len(x), 12, device="cuda", dtype=x.dtype), torch.empty(2, 12, device="cuda")
    norm = (weight, bias, zeros, ones, None, fused.ACTIVATIONS.index("none"), 1e-5)
    fused.part("dense_convolution", x)(x, filters, *norm, 32, 32, y, mean, variance, True)
    exact_variance, exact_mean = torch.var_mean(y.double(), 0, correction=0)
    torch.testing.assert_close(mean.double(), exact_mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(variance.double(), exact_variance, rtol=1e-5, atol=0)


def test_the_block_keeps_each_bottleneck_once():
    x, *tensors = given("fits", torch.bfloat16)
    halves = halves_of(tensors)
    outputs = torch.ops.reread_kernels.dense_block(
        x, halves.weights, halves.biases, None, halves.kernels, halves.running_means, halves.running_variances,
        "relu", 1e-5, True, True,
    )  # fmt: skip
    rows, bottleneck = x.numel() // x.shape[1], SHAPES["fits"][2]
    assert [tuple(output.shape) for output in outputs].count((rows, bottleneck)) == LAYERS


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
    assert "reread_kernels.dense_block.default" in {str(node.target) for node in exported.graph.nodes}
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
