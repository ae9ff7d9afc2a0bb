"""Depthwise convolution's kernels on a GPU, in strict mode: the reference can not stand in for them."""

import pytest
import torch
from torch.nn import functional

from cuda_ext import library
from cuda_ext.depthwise_conv2d import DTYPES, PADDINGS, depthwise_conv2d, reference, reference_backward
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# By relative norm: in half precision the rounding of the result, which is its last step.
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 6e-3}
# One tile and several, whole units and broken ones, each width of move, more images than one stage takes.
SHAPES = [
    (3, 5, 56, 56),
    (33, 2, 28, 28),
    (150, 2, 8, 8),
    (2, 3, 112, 112),
    (2, 3, 64, 64),
    (70, 3, 7, 7),
    (5, 2, 17, 33),
    (2, 3, 130, 200),
    (2, 2, 65, 66),
    (4, 3, 16, 18),
    (3, 1, 90, 5),
]


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def inputs_of(shape, k, dtype=torch.float32):
    """An image, a filter and a gradient of the result."""
    return draw(*shape, dtype=dtype), draw(shape[1], 1, k, k, dtype=dtype, seed=1), draw(*shape, dtype=dtype, seed=2)


def both_passes(x, weight, gradient, padding="zeros"):
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    result = depthwise_conv2d(x, weight, padding)
    return result.detach(), *torch.autograd.grad(result, (x, weight), gradient)


def exactly(x, weight, gradient, padding="zeros"):
    x, weight, gradient = x.double(), weight.double(), gradient.double()
    return reference(x, weight, padding), *reference_backward(gradient, x, weight, padding, True, True)


def test_the_library_is_what_runs():
    assert library.kernels(torch.device("cuda", 0)).startswith("extension ")


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float64])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("k", [3, 5, 7, 9, 31])
def test_the_error_against_float64_is_rounding(k, shape, dtype):
    inputs = inputs_of(shape, k, dtype)
    for padding in PADDINGS:
        if padding == "reflect" and k // 2 >= min(shape[2:]):
            continue
        found = both_passes(*inputs, padding)
        assert all(tensor.dtype == dtype and tensor.is_contiguous() for tensor in found)
        assert rules.relative_error(found, exactly(*inputs, padding)) < LARGEST_ERROR[dtype]


@pytest.mark.parametrize("k", range(1, 32, 2))
def test_every_filter_size(k):
    for dtype in (torch.float32, torch.float64):
        inputs = inputs_of((2, 2, 33, 40), k, dtype)
        for padding in PADDINGS:
            error = rules.relative_error(both_passes(*inputs, padding), exactly(*inputs, padding))
            assert error < LARGEST_ERROR[dtype]


@pytest.mark.parametrize("k", [3, 9])
def test_strides_and_misaligned_views(k):
    x, weight, gradient = inputs_of((4, 6, 20, 24), k)
    flat = torch.cat([x.flatten(), x.flatten()])
    taps = torch.cat([weight.flatten(), weight.flatten()])
    odd = [t[3 : 3 + like.numel()].view(like.shape) for t, like in ((flat, x), (taps, weight), (flat, x))]
    last = [t.contiguous(memory_format=torch.channels_last) for t in (x, weight, gradient)]
    turned = [t.transpose(2, 3) for t in (x, weight, gradient)]
    shared = [x[:1].expand(4, 6, 20, 24), weight[:1].expand(6, 1, k, k), gradient[:, :1, :1, :1].expand(4, 6, 20, 24)]
    for inputs in (odd, last, turned, shared, [x[:, ::2], weight[::2], gradient[:, ::2]]):
        assert rules.relative_error(both_passes(*inputs), exactly(*inputs)) < 1e-5


@pytest.mark.parametrize("k", [3, 9])
def test_gradients_of_one_input_alone_are_those_of_both(k):
    x, weight, gradient = inputs_of((3, 4, 30, 28), k)
    backward = torch.ops.cuda_ext.depthwise_conv2d_backward
    for padding in PADDINGS:
        _, of_x, of_weight = both_passes(x, weight, gradient, padding)
        assert rules.relative_error(backward(gradient, x, weight, padding, True, False)[0], of_x) < 1e-6
        assert rules.relative_error(backward(gradient, x, weight, padding, False, True)[1], of_weight) < 1e-6


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float64])
@pytest.mark.parametrize("size", [(56, 56), (20, 30)], ids=str)
@pytest.mark.parametrize("k", [3, 5, 7])
def test_what_is_not_finite_stays_within_the_filters_reach(k, size, dtype):
    x, weight, gradient = inputs_of((2, 3, *size), k, dtype)
    x[0, 1, 4, 0] = gradient[0, 1, 4, 0] = float("inf")
    x[1, 2, 10, 17] = gradient[1, 2, 10, 17] = float("nan")
    found = both_passes(x, weight, gradient)[:2]
    for a, b in zip(found, exactly(x, weight, gradient)[:2], strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        finite = b.isfinite()
        assert rules.relative_error(a[finite], b[finite]) < LARGEST_ERROR[dtype]


def test_empty_images_have_empty_results_and_no_filter_gradient():
    for shape in [(0, 3, 5, 5), (2, 0, 5, 5), (2, 3, 0, 5), (2, 3, 5, 0)]:
        result, of_x, of_weight = both_passes(*inputs_of(shape, 3))
        assert result.shape == of_x.shape == shape
        assert torch.equal(of_weight, torch.zeros_like(of_weight))


@pytest.mark.parametrize("shape", [(2**21 + 1, 1024, 1, 1), (1, 1, 2**16, 2**15 + 64)], ids=str)
def test_more_than_2_to_the_31_elements(shape):
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    weight = draw(shape[1], 1, 3, 3, dtype=torch.bfloat16)
    result = depthwise_conv2d(x, weight)
    of_x, of_weight = torch.ops.cuda_ext.depthwise_conv2d_backward(x, x, weight, "zeros", True, True)
    for part in (slice(0, 40), slice(-40, None)):
        # What lies far enough from the cut: of a part it is what it is of the whole.
        piece, far = (part, slice(None)) if shape[2] == 1 else ((slice(None), slice(None), part), slice(2, 38))
        for found, taps in ((result, weight), (of_x, weight.flip(2, 3))):
            exact = reference(x[piece].double(), taps.double())
            assert rules.relative_error(found[piece][:, :, far], exact[:, :, far]) < LARGEST_ERROR[torch.bfloat16]
    square = sum(float(part.double().square().sum()) for part in x.view(-1).split(2**28))
    assert abs(float(of_weight[:, 0, 1, 1].double().sum()) / square - 1) < LARGEST_ERROR[torch.bfloat16]


@pytest.mark.parametrize("k", [3, 7, 11])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_runs_give_the_same_bits(k, dtype):
    rules.fifty_runs_give_the_same_bits(both_passes, inputs_of((6, 20, 30, 44), k, dtype))


@pytest.mark.parametrize("k", [5, 9])
@pytest.mark.parametrize("padding", PADDINGS)
def test_a_cuda_graph_replays_it_on_new_values(k, padding):
    inputs = inputs_of((3, 4, 20, 24), k)
    rules.a_graph_replays_it_on_new_values(
        lambda *given: both_passes(*given, padding), inputs, draw(3, 4, 20, 24, seed=3)
    )


@pytest.mark.parametrize("k", [5, 9])
def test_it_runs_on_the_current_stream(k):
    inputs = inputs_of((8, 16, 64, 64), k)
    rules.it_runs_on_the_current_stream(both_passes, inputs, draw(8, 16, 64, 64, seed=3))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients():
    x, weight, gradient = inputs_of((3, 4, 20, 24), 5)
    rules.torch_compile_takes_it_whole(depthwise_conv2d, (x, weight), 1e-6)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: depthwise_conv2d(x * 2, w, "reflect").sin(), fullgraph=True)
    x.requires_grad_()
    weight.requires_grad_()
    found = torch.autograd.grad(compiled(x, weight), (x, weight), gradient)
    expected = torch.autograd.grad(depthwise_conv2d(x * 2, weight, "reflect").sin(), (x, weight), gradient)
    assert rules.relative_error(found, expected) < 1e-5


@pytest.mark.filterwarnings("ignore")
def test_autocast_casts_both_also_under_torch_compile():
    x, weight, gradient = inputs_of((3, 4, 20, 24), 3)
    x.requires_grad_()
    weight.requires_grad_()

    def run(x, weight):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return depthwise_conv2d(x, weight)

    torch._dynamo.reset()
    for function in (run, torch.compile(run, fullgraph=True)):
        result = function(x, weight)
        assert result.dtype == torch.bfloat16
        assert torch.equal(result, depthwise_conv2d(x.bfloat16(), weight.bfloat16()))
        found = torch.autograd.grad(result, (x, weight), gradient.bfloat16())
        assert all(tensor.dtype == torch.float32 for tensor in found)


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_operations_keep_pytorch_s_rules(padding):
    x, weight, gradient = inputs_of((2, 3, 9, 10), 3)
    operations = torch.ops.cuda_ext
    torch.library.opcheck(operations.depthwise_conv2d_backward, (gradient, x, weight, padding, True, True))
    torch.library.opcheck(operations.depthwise_conv2d, (x.requires_grad_(), weight.requires_grad_(), padding))


@pytest.mark.parametrize("padding", PADDINGS)
def test_gradients_match_finite_differences(padding):
    x, weight, _ = (tensor.double().requires_grad_() for tensor in inputs_of((2, 2, 4, 5), 3))
    # On a GPU PyTorch sums the gradient of a padded border in any order.
    order = {"nondet_tol": 1e-12}
    assert torch.autograd.gradcheck(lambda x, w: depthwise_conv2d(x, w, padding), (x, weight), **order)
    assert torch.autograd.gradgradcheck(lambda x, w: depthwise_conv2d(x, w, padding), (x, weight), **order)


def test_a_training_step_equals_pytorch_s():
    x, weight, gradient = inputs_of((4, 8, 28, 28), 3)
    ours, theirs = (torch.nn.Parameter(weight.clone()) for _ in range(2))
    for parameter, function in (
        (ours, depthwise_conv2d),
        (theirs, lambda x, w: functional.conv2d(x, w, None, 1, 1, 1, 8)),
    ):
        optimiser = torch.optim.SGD([parameter], lr=1e-3, momentum=0.9)
        for _ in range(3):
            optimiser.zero_grad()
            (function(x, parameter) * gradient).sum().backward()
            optimiser.step()
    assert rules.relative_error(ours.detach(), theirs.detach()) < 1e-4


def test_two_devices_are_refused_and_so_are_the_compiled_operations_called_wrongly():
    x, weight, gradient = inputs_of((2, 3, 8, 8), 3)
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        depthwise_conv2d(x, weight.cpu())
    compiled = torch.ops.cuda_ext_kernels.depthwise_conv2d
    with pytest.raises(RuntimeError, match=r"weight must be \[3, 1, k, k\] with an odd k up to 31, got \[2, 1, 3, 3\]"):
        compiled(x, weight[:2], 0)
    with pytest.raises(RuntimeError, match="one dtype"):
        compiled(x, weight.double(), 0)
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled(x.int(), weight.int(), 0)
    with pytest.raises(RuntimeError, match="padding must be 0, 1 or 2, got 3"):
        compiled(x, weight, 3)
    with pytest.raises(RuntimeError, match="reflect padding needs more than 1 rows and columns, got 1 and 8"):
        compiled(x[:, :, :1], weight, 1)
    backward = torch.ops.cuda_ext_kernels.depthwise_conv2d_backward
    with pytest.raises(RuntimeError, match="gradient and x must have one shape"):
        backward(gradient[:1], x, weight, 0, True, True)
