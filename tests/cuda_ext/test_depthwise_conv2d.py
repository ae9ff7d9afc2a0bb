"""Depthwise convolution on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from cuda_ext import library
from cuda_ext.depthwise_conv2d import DTYPES, PADDINGS, depthwise_conv2d, reference

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def draw(*shape, dtype=torch.float64, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def in_channels_last(x):
    return x.contiguous(memory_format=torch.channels_last)


def by_definition(x, weight, padding):
    """The sum over the taps, written out; float64."""
    k = weight.shape[-1]
    padded = functional.pad(x, (k // 2,) * 4, mode=PADDINGS[padding])
    height, width = x.shape[2:]
    taps = (
        weight[:, 0, a, b, None, None] * padded[..., a : a + height, b : b + width] for a in range(k) for b in range(k)
    )
    return sum(taps, torch.zeros_like(x))


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("k", [1, 3, 5, 9])
def test_it_is_the_sum_over_the_taps(padding, k):
    x, weight = draw(2, 3, 6, 11), draw(3, 1, k, k, seed=1)
    torch.testing.assert_close(depthwise_conv2d(x, weight, padding), by_definition(x, weight, padding))
    torch.testing.assert_close(reference(x, weight, padding), by_definition(x, weight, padding))


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_keeps_the_dtype_and_is_contiguous_or_channels_last(dtype):
    x, weight = draw(2, 3, 8, 6, dtype=dtype), draw(3, 1, 3, 3, dtype=dtype, seed=1)
    expected = depthwise_conv2d(x, weight)
    assert expected.dtype == dtype
    assert expected.is_contiguous()
    for view, layout in (
        (in_channels_last(x), torch.channels_last),
        (x.transpose(2, 3).contiguous().transpose(2, 3), torch.contiguous_format),
    ):
        result = depthwise_conv2d(view, weight)
        assert result.is_contiguous(memory_format=layout)
        torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("padding", PADDINGS)
def test_the_gradient_of_a_channels_last_image_is_channels_last(padding):
    x, weight, gradient = draw(2, 3, 5, 6), draw(3, 1, 3, 3, seed=1).requires_grad_(), draw(2, 3, 5, 6, seed=2)
    expected = torch.autograd.grad(depthwise_conv2d(x.requires_grad_(), weight, padding), (x, weight), gradient)
    last = in_channels_last(x.detach()).requires_grad_()
    for given in (gradient, in_channels_last(gradient)):
        found = torch.autograd.grad(depthwise_conv2d(last, weight, padding), (last, weight), given)
        assert found[0].is_contiguous(memory_format=torch.channels_last)
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("shape", [(2, 1, 5, 6), (2, 3, 1, 1), (0, 3, 5, 6)])
def test_what_has_both_layouts_is_contiguous(shape):
    x, weight = in_channels_last(draw(*shape)), draw(shape[1], 1, 3, 3, seed=1)
    assert depthwise_conv2d(x, weight).is_contiguous()


def test_compiled_code_has_the_strides_of_the_result():
    """torch.compile takes them from the shape function."""
    x, weight = in_channels_last(draw(2, 3, 5, 6)), draw(3, 1, 3, 3, seed=1)
    compiled = torch.compile(lambda x, w: depthwise_conv2d(x, w).sin(), fullgraph=True, backend="aot_eager")
    for image in (x, x.contiguous()):
        result = compiled(image, weight)
        assert result.stride() == image.stride()
        torch.testing.assert_close(result, depthwise_conv2d(image, weight).sin())


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("shape", [(0, 3, 5, 5), (2, 0, 5, 5), (2, 3, 0, 5), (2, 3, 5, 0)])
def test_empty_images_have_empty_results_and_no_filter_gradient(padding, shape):
    x, weight = draw(*shape).requires_grad_(), draw(shape[1], 1, 3, 3, seed=1).requires_grad_()
    result = depthwise_conv2d(x, weight, padding)
    assert result.shape == shape
    gradients = torch.autograd.grad(result, (x, weight), torch.zeros_like(result))
    assert gradients[0].shape == shape
    assert torch.equal(gradients[1], torch.zeros_like(weight))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
def test_gradients_match_finite_differences(padding, layout):
    x = draw(2, 2, 4, 5).contiguous(memory_format=layout).requires_grad_()
    weight = draw(2, 1, 3, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, w: depthwise_conv2d(x, w, padding), (x, weight))
    assert torch.autograd.gradgradcheck(lambda x, w: depthwise_conv2d(x, w, padding), (x, weight))


def test_gradients_of_one_input_alone():
    x, weight, gradient = draw(2, 3, 5, 6), draw(3, 1, 3, 3, seed=1), draw(2, 3, 5, 6, seed=2)
    x_too, weight_too = x.clone().requires_grad_(), weight.clone().requires_grad_()
    both = torch.autograd.grad(depthwise_conv2d(x_too, weight_too), (x_too, weight_too), gradient)
    torch.testing.assert_close(torch.autograd.grad(depthwise_conv2d(x_too, weight), x_too, gradient)[0], both[0])
    torch.testing.assert_close(torch.autograd.grad(depthwise_conv2d(x, weight_too), weight_too, gradient)[0], both[1])
    # A gradient that every place shares, as sum() sends it.
    shared = torch.autograd.grad(depthwise_conv2d(x, weight_too).sum(), weight_too)[0]
    ones = torch.autograd.grad(depthwise_conv2d(x, weight_too), weight_too, torch.ones_like(x))[0]
    torch.testing.assert_close(shared, ones)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("padding", PADDINGS)
def test_the_operations_keep_pytorch_s_rules(padding, layout):
    x = draw(2, 3, 5, 6, dtype=torch.float32).contiguous(memory_format=layout)
    weight = draw(3, 1, 3, 3, dtype=torch.float32, seed=1)
    operations = torch.ops.cuda_ext
    torch.library.opcheck(operations.depthwise_conv2d, (x.requires_grad_(), weight.requires_grad_(), padding))
    detached = x.detach(), weight.detach()
    for wants in ((True, True), (True, False), (False, True)):
        torch.library.opcheck(
            operations.depthwise_conv2d_backward, (draw(2, 3, 5, 6).float(), *detached, padding, *wants)
        )


def test_autocast_casts_both_and_gradients_keep_their_dtype():
    x, weight = draw(2, 3, 5, 6, dtype=torch.float32), draw(3, 1, 3, 3, dtype=torch.float32, seed=1)
    x.requires_grad_()
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = depthwise_conv2d(x, weight)
    assert result.dtype == torch.bfloat16
    assert torch.equal(result, depthwise_conv2d(x.bfloat16(), weight.bfloat16()))
    result.sum().backward()
    assert (x.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert depthwise_conv2d(x.double(), weight.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((draw(2, 3, 5, 5), draw(3, 1, 4, 4)), "odd size from 1 to 31, got 4"),
        ((draw(2, 3, 50, 50), draw(3, 1, 33, 33)), "odd size from 1 to 31, got 33"),
        ((draw(2, 3, 5, 5), draw(2, 1, 3, 3)), r"weight of \[3, 1, k, k\], got \(2, 1, 3, 3\)"),
        ((draw(2, 3, 5, 5), draw(3, 1, 3, 5)), r"weight of \[3, 1, k, k\], got \(3, 1, 3, 5\)"),
        ((draw(2, 3, 5, 5), draw(3, 3, 3)), r"weight of \[3, 1, k, k\], got \(3, 3, 3\)"),
        ((draw(3, 5, 5), draw(3, 1, 3, 3)), r"\[batch, channels, height, width\], got \(3, 5, 5\)"),
        ((draw(2, 3, 5, 5), draw(3, 1, 3, 3).float()), "one dtype of .*, got torch.float64 and torch.float32"),
        ((draw(2, 3, 5, 5).long(), draw(3, 1, 3, 3).long()), "one dtype of .*, got torch.int64 and torch.int64"),
        ((draw(2, 3, 5, 5), draw(3, 1, 3, 3).to("meta")), "one device, got cpu and meta"),
        ((draw(2, 3, 5, 5), draw(3, 1, 3, 3), "same"), "padding zeros, reflect, replicate, got 'same'"),
        ((draw(2, 3, 5, 2), draw(3, 1, 5, 5), "reflect"), r"a filter of 5 needs more than 2, got \(5, 2\)"),
    ],
)
def test_what_it_does_not_take_is_refused_with_what_came(inputs, message):
    with pytest.raises(ValueError, match=message):
        depthwise_conv2d(*inputs)


def test_a_gradient_unlike_the_image_is_refused():
    x, weight = draw(2, 3, 5, 5), draw(3, 1, 3, 3)
    with pytest.raises(ValueError, match=r"got \(2, 3, 5, 4\) of torch.float64 .* for \(2, 3, 5, 5\)"):
        torch.ops.cuda_ext.depthwise_conv2d_backward(x[..., :4], x, weight, "zeros", True, True)


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(
        library.KernelError, match="depthwise_conv2d has no kernel to run .*: the tensors are on the cpu"
    ):
        depthwise_conv2d(draw(2, 3, 5, 5), draw(3, 1, 3, 3))
