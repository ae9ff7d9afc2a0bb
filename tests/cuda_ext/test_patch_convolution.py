"""The patch convolution on the CPU: the reference behind the operation, its gradient, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from cuda_ext import library
from cuda_ext.batch_norm_activation import ACTIVATIONS
from cuda_ext.patch_convolution import DTYPES, patch_convolution
from cuda_ext.patch_convolution.cases import FUNCTIONS, given

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def drawn(*shape, dtype=torch.float64):
    torch.manual_seed(0)
    return tuple(tensor.to(dtype) for tensor in given(shape, "cpu"))


@quiet
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (1, 1, 2, 2), (0, 3, 4, 4)])
def test_it_is_the_convolution_with_its_activation_and_the_gradient_of_its_bias(shape, activation):
    images, filters, bias = drawn(*shape)
    bias.requires_grad_()
    y = patch_convolution(images, filters, bias, activation)
    expected = FUNCTIONS[activation](functional.conv2d(images, filters, bias))
    assert y.movedim(1, -1).is_contiguous()
    torch.testing.assert_close(y, expected)
    above = torch.randn_like(expected)
    torch.testing.assert_close(torch.autograd.grad(y, bias, above), torch.autograd.grad(expected, bias, above))


@quiet
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_all_is_computed_in_the_images_type_and_rounded_once(dtype):
    images, filters, bias = drawn(2, 3, 5, 6, dtype=torch.float32)
    y = patch_convolution(images, filters, bias, "gelu", dtype)
    assert y.dtype == dtype and torch.equal(y, patch_convolution(images, filters, bias, "gelu").to(dtype))


@quiet
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_the_gradient_matches_finite_differences(activation):
    images, filters, bias = drawn(2, 1, 4, 3)
    assert torch.autograd.gradcheck(lambda b: patch_convolution(images, filters, b, activation), bias.requires_grad_())


@quiet
@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 1, 2, 2), (0, 3, 4, 4)])
def test_the_operations_keep_pytorch_s_rules(dtype, shape):
    images, filters, bias = drawn(*shape, dtype=torch.float32)
    operations = torch.ops.reread_kernels
    torch.library.opcheck(operations.patch_convolution, (images, filters, bias.clone().requires_grad_(), "gelu", dtype))
    y = patch_convolution(images, filters, bias, "gelu", dtype)
    torch.library.opcheck(operations.patch_convolution_backward, (y, images, filters, bias, "gelu"))


@quiet
@pytest.mark.parametrize("activation", ["none", "relu"])
def test_the_gradient_passes_what_is_no_number_as_in_pytorch(activation):
    images, filters, bias = drawn(2, 3, 9, 9)
    images[0, :, 1, 1], images[1, :, 4, 4] = float("nan"), -float("inf")
    bias.requires_grad_()
    expected = FUNCTIONS[activation](functional.conv2d(images, filters, bias))
    (gradient,) = torch.autograd.grad(patch_convolution(images, filters, bias, activation).sum(), bias)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.sum(), bias)[0])


@quiet
def test_autocast_changes_nothing():
    images, filters, bias = drawn(2, 3, 5, 4, dtype=torch.float32)
    expected, bias = patch_convolution(images, filters, bias), bias.requires_grad_()
    (gradient,) = torch.autograd.grad(patch_convolution(images, filters, bias, "gelu").sum(), bias)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = patch_convolution(images, filters, bias)
        (there,) = torch.autograd.grad(patch_convolution(images, filters, bias, "gelu").sum(), bias)
    assert torch.equal(y, expected) and torch.equal(there, gradient)


@quiet
def test_images_and_filters_get_no_gradient_and_there_is_no_second_one():
    images, filters, bias = drawn(2, 1, 4, 4)
    bias.requires_grad_()
    for trained in (images, filters):
        trained.requires_grad_()
        y = patch_convolution(images, filters, bias)
        with pytest.raises(RuntimeError, match="gradient of the bias alone: detach images and filters"):
            y.sum().backward()
        trained.requires_grad_(False)
    y = patch_convolution(images, filters, bias, "gelu")
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(y.sum(), bias, create_graph=True)


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    images, filters, bias = drawn(2, 3, 4, 4, dtype=torch.float32)
    with pytest.raises(ValueError, match="none, relu, swish, gelu, got 'elu'"):
        patch_convolution(images, filters, bias, "elu")
    with pytest.raises(ValueError, match="one device, got torch.float16 on cpu, torch.float32 on cpu"):
        patch_convolution(images, filters.half(), bias)
    with pytest.raises(ValueError, match=r"at least 2 x 2 pixels, got \(2, 3, 1, 4\)"):
        patch_convolution(images[:, :, :1], filters, bias)
    with pytest.raises(ValueError, match=r"of 1 or 3 channels .* got \(2, 2, 4, 4\)"):
        patch_convolution(images[:, :2], filters, bias)
    with pytest.raises(ValueError, match=r"filters \(24, 3, 2, 2\) .* got \(8, 3, 2, 2\) and \(24,\)"):
        patch_convolution(images, filters[:8], bias)
    with pytest.raises(ValueError, match="gives float32, float16 or bfloat16, not torch.float64"):
        patch_convolution(images, filters, bias, "none", torch.float64)
    backward = torch.ops.reread_kernels.patch_convolution_backward
    y = patch_convolution(images, filters, bias)
    with pytest.raises(ValueError, match=r"dy as y is, \(2, 24, 3, 3\) on cpu, got \(1, 24, 3, 3\)"):
        backward(y[:1], images, filters, bias, "none")


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(library.KernelError, match="patch_convolution has no kernel to run"):
        patch_convolution(*drawn(1, 1, 2, 2))
