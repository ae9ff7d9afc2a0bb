"""Depthwise convolution of channels-last images on a GPU, in strict mode: kernels of its own, and what is copied."""

import pytest
import torch

from cuda_ext.depthwise_conv2d import DTYPES, PADDINGS, depthwise_conv2d
from tests.cuda_ext import rules
from tests.cuda_ext.test_depthwise_conv2d_gpu import LARGEST_ERROR, both_passes, draw, exactly, inputs_of

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
HALVES_AND_FLOATS = [dtype for dtype in DTYPES if dtype != torch.float64]
# One piece of the channels and several, some broken; tiles that an image fills and others; one pixel; one row.
SHAPES = [
    (2, 128, 56, 56),
    (33, 32, 7, 7),
    (2, 64, 70, 33),
    (3, 72, 9, 131),
    (1, 8, 130, 200),
    (5, 264, 14, 14),
    (4, 520, 2, 3),
    (2, 16, 1, 40),
    (3, 16, 1, 1),
]


def in_channels_last(*tensors):
    return [tensor.contiguous(memory_format=torch.channels_last) for tensor in tensors]


def launched(function):
    """The names of the kernels that ``function`` launches."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
        function()
        torch.cuda.synchronize()
    return [event.name for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]


@pytest.mark.parametrize("dtype", HALVES_AND_FLOATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("k", [3, 5, 7])
def test_the_error_against_float64_is_rounding(k, shape, dtype):
    inputs = inputs_of(shape, k, dtype)
    x, weight, gradient = inputs
    for padding in PADDINGS:
        if padding == "reflect" and k // 2 >= min(shape[2:]):
            continue
        found = both_passes(*in_channels_last(x), weight, *in_channels_last(gradient), padding)
        assert all(tensor.dtype == dtype for tensor in found)
        assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in found[:2])
        assert rules.relative_error(found, exactly(*inputs, padding)) < LARGEST_ERROR[dtype]


@pytest.mark.parametrize("dtype", HALVES_AND_FLOATS)
def test_nothing_is_copied(dtype):
    x, weight, gradient = inputs_of((2, 64, 20, 24), 3, dtype)
    x, gradient = in_channels_last(x, gradient)
    both_passes(x, weight, gradient)
    names = launched(lambda: both_passes(x, weight, gradient))
    assert len(names) == 3, names
    assert all("depthwise" in name for name in names), names


@pytest.mark.parametrize(("channels", "k"), [(3, 3), (12, 5), (16, 9), (16, 1)])
def test_what_has_no_kernel_is_copied_and_the_results_are_channels_last(channels, k):
    for dtype in DTYPES:
        inputs = inputs_of((2, channels, 12, 15), k, dtype)
        x, weight, gradient = inputs
        for padding in PADDINGS:
            found = both_passes(*in_channels_last(x), weight, gradient, padding)
            assert all(tensor.is_contiguous(memory_format=torch.channels_last) for tensor in found[:2])
            assert rules.relative_error(found, exactly(*inputs, padding)) < LARGEST_ERROR[dtype]


def test_misaligned_images_and_gradients_of_any_layout():
    x, weight, gradient = inputs_of((2, 24, 20, 9), 3)
    expected = exactly(x, weight, gradient)
    flat = torch.cat([gradient.new_zeros(3), *(t.permute(0, 2, 3, 1).flatten() for t in (x, gradient))])
    odd = [flat[3:][i * x.numel() :][: x.numel()].view(2, 20, 9, 24).permute(0, 3, 1, 2) for i in range(2)]
    taps = torch.cat([weight.flatten(), weight.flatten()])[5 : 5 + weight.numel()].view(weight.shape)
    assert rules.relative_error(both_passes(odd[0], weight, odd[1]), expected) < 1e-5
    assert rules.relative_error(both_passes(*in_channels_last(x), weight, gradient), expected) < 1e-5
    assert rules.relative_error(both_passes(x, weight, *in_channels_last(gradient)), expected) < 1e-5
    shared = gradient[:, :1, :1, :1].expand_as(x)
    for filters in (weight, taps):
        found = both_passes(*in_channels_last(x), filters, shared)
        assert rules.relative_error(found, exactly(x, filters, shared)) < 1e-5


@pytest.mark.parametrize("k", [3, 5, 7])
def test_gradients_of_one_input_alone_are_those_of_both(k):
    x, weight, gradient = inputs_of((3, 40, 30, 28), k)
    x, gradient = in_channels_last(x, gradient)
    backward = torch.ops.cuda_ext.depthwise_conv2d_backward
    for padding in PADDINGS:
        _, of_x, of_weight = both_passes(x, weight, gradient, padding)
        assert rules.relative_error(backward(gradient, x, weight, padding, True, False)[0], of_x) < 1e-6
        assert rules.relative_error(backward(gradient, x, weight, padding, False, True)[1], of_weight) < 1e-6


@pytest.mark.parametrize("dtype", HALVES_AND_FLOATS)
@pytest.mark.parametrize("k", [3, 5, 7])
def test_what_is_not_finite_stays_within_the_filters_reach(k, dtype):
    x, weight, gradient = inputs_of((2, 16, 40, 30), k, dtype)
    x[0, 1, 4, 0] = gradient[0, 1, 4, 0] = float("inf")
    x[1, 2, 10, 17] = gradient[1, 2, 10, 17] = float("nan")
    found = both_passes(*in_channels_last(x), weight, *in_channels_last(gradient))[:2]
    for a, b in zip(found, exactly(x, weight, gradient)[:2], strict=True):
        assert torch.equal(a.isfinite(), b.isfinite())
        finite = b.isfinite()
        assert rules.relative_error(a[finite], b[finite]) < LARGEST_ERROR[dtype]


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 30 * 2**30:
        pytest.skip("needs 30 GiB of free GPU memory")
    shape = (2, 32, 2**13, 2**12 + 8)
    x = torch.randn(shape[0], *shape[2:], shape[1], device="cuda", dtype=torch.bfloat16).permute(0, 3, 1, 2)
    weight = draw(shape[1], 1, 3, 3, dtype=torch.bfloat16)
    result = depthwise_conv2d(x, weight)
    of_x, of_weight = torch.ops.cuda_ext.depthwise_conv2d_backward(x, x, weight, "zeros", True, True)
    for image, rows in ((0, slice(0, 40)), (1, slice(-40, None))):
        # What is far enough from the cut: of a part it is what it is of the whole.
        part = x[image : image + 1, :, rows].double()
        for found, taps in ((result, weight), (of_x, weight.flip(2, 3))):
            exact = exactly(part, taps, part)[0][:, :, 2:38]
            assert rules.relative_error(found[image : image + 1, :, rows][:, :, 2:38], exact) < 6e-3
    square = sum(float(image.double().square().sum()) for image in x)
    assert abs(float(of_weight[:, 0, 1, 1].double().sum()) / square - 1) < LARGEST_ERROR[torch.bfloat16]


@pytest.mark.parametrize("k", [3, 5, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fifty_runs_give_the_same_bits(k, dtype):
    x, weight, gradient = inputs_of((6, 40, 30, 44), k, dtype)
    rules.fifty_runs_give_the_same_bits(both_passes, (*in_channels_last(x), weight, *in_channels_last(gradient)))


@pytest.mark.parametrize("padding", PADDINGS)
def test_a_cuda_graph_replays_it_on_new_values(padding):
    x, weight, gradient = inputs_of((3, 8, 20, 24), 5)
    inputs = (*in_channels_last(x), weight, *in_channels_last(gradient))
    rules.a_graph_replays_it_on_new_values(
        lambda *given: both_passes(*given, padding), inputs, draw(3, 8, 20, 24, seed=3)
    )


def test_it_runs_on_the_current_stream():
    x, weight, gradient = inputs_of((8, 16, 64, 64), 3)
    inputs = (*in_channels_last(x), weight, *in_channels_last(gradient))
    rules.it_runs_on_the_current_stream(both_passes, inputs, *in_channels_last(draw(8, 16, 64, 64, seed=3)))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients_and_strides():
    x, weight, gradient = inputs_of((3, 8, 20, 24), 5)
    x, gradient = in_channels_last(x, gradient)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, w: depthwise_conv2d(x * 2, w, "reflect").sin(), fullgraph=True)
    x.requires_grad_()
    weight.requires_grad_()
    result = compiled(x, weight)
    assert result.is_contiguous(memory_format=torch.channels_last)
    found = torch.autograd.grad(result, (x, weight), gradient)
    expected = torch.autograd.grad(depthwise_conv2d(x * 2, weight, "reflect").sin(), (x, weight), gradient)
    assert rules.relative_error(found, expected) < 1e-5


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_operations_keep_pytorch_s_rules(padding):
    x, weight, gradient = inputs_of((2, 8, 9, 10), 3)
    x, gradient = in_channels_last(x, gradient)
    operations = torch.ops.cuda_ext
    torch.library.opcheck(operations.depthwise_conv2d_backward, (gradient, x, weight, padding, True, True))
    torch.library.opcheck(operations.depthwise_conv2d, (x.requires_grad_(), weight.requires_grad_(), padding))
