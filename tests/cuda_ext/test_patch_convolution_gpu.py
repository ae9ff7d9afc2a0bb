"""The patch convolution's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch

from cuda_ext.batch_norm_activation import ACTIVATIONS
from cuda_ext.patch_convolution import patch_convolution
from cuda_ext.patch_convolution.cases import FUNCTIONS, given
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# One patch, one line of them, less than a block, one channel and three, more patches than the blocks have threads.
SHAPES = [(1, 3, 2, 2), (5, 1, 2, 40), (3, 3, 19, 23), (7, 1, 28, 28), (500, 3, 32, 32)]
# Rounding to half of the last place, with some room.
LARGEST_ERROR = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def drawn(*shape, seed=0):
    torch.manual_seed(seed)
    return given(shape)


def with_gradient(images, filters, bias, activation, dtype):
    bias = bias.detach().requires_grad_()
    y = patch_convolution(images, filters, bias, activation, dtype)
    torch.manual_seed(1)
    return y.detach(), torch.autograd.grad(y, bias, torch.randn(y.shape, device="cuda").to(dtype))[0]


def exactly(images, filters, bias, activation, dtype, device="cuda"):
    images, filters, bias = (tensor.detach().to(device, torch.float64) for tensor in (images, filters, bias))
    y = FUNCTIONS[activation](torch.nn.functional.conv2d(images, filters, bias.requires_grad_()))
    torch.manual_seed(1)
    dy = torch.randn(y.shape, device="cuda").to(dtype).to(device, torch.float64)
    return y.detach(), torch.autograd.grad(y, bias, dy)[0]


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", LARGEST_ERROR)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_against_float64_is_rounding(shape, dtype, activation):
    call = (*drawn(*shape), activation, dtype)
    y, gradient = with_gradient(*call)
    exact, exact_gradient = exactly(*call)
    assert y.dtype == dtype and y.movedim(1, -1).is_contiguous() and gradient.dtype == torch.float32
    assert rules.relative_error(y, exact) <= LARGEST_ERROR[dtype]
    # Rounding of y does not reach its gradient, whose sum may lose digits.
    error = (gradient.double() - exact_gradient).norm()
    assert error <= 1e-6 * exact[0, 0].numel() ** 0.5 * (exact_gradient.norm() + shape[0] ** 0.5)


def test_filters_that_whiten_keep_their_digits():
    """Neighbouring pixels that are nearly equal, and filters of their differences: half precision would lose them."""
    images, filters, bias = drawn(20, 3, 32, 32)
    images = images[:1, :, :1, :1] + 1e-3 * images
    filters = 1e3 * (filters - filters.mean((2, 3), keepdim=True))
    y, _ = with_gradient(images, filters, bias, "none", torch.float32)
    exact, _ = exactly(images, filters, bias, "none", torch.float32)
    assert rules.relative_error(y, exact) <= 1e-3


def test_strides_are_followed():
    images, filters, bias = drawn(4, 3, 12, 10)
    for view in (
        images.contiguous(),
        images[:, :, 1:],
        images[..., ::3],
        images.transpose(2, 3),
        images[:1].expand(4, 3, 12, 10),
    ):
        call = (view, filters, bias, "gelu", torch.bfloat16)
        assert all(map(torch.equal, with_gradient(*call), with_gradient(view.clone(), *call[1:])))


def test_a_gradient_that_begins_between_two_packs_is_copied():
    images, filters, bias = drawn(4, 3, 6, 5)
    dy = torch.randn(4 * 5 * 4 * 24 + 1, device="cuda").bfloat16()[1:].view(4, 5, 4, 24).movedim(-1, 1)
    backward = torch.ops.reread_kernels.patch_convolution_backward
    assert dy.data_ptr() % 16
    assert torch.equal(*(backward(d, images, filters, bias, "gelu") for d in (dy, dy.clone())))


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_the_gradient_passes_what_is_no_number_as_in_pytorch(activation):
    images, filters, bias = drawn(2, 3, 9, 9)
    images[0, :, 1, 1], images[1, :, 4, 4] = float("nan"), -float("inf")
    call = (images, filters, bias, activation, torch.float32)
    # On the CPU: cuDNN may choose an algorithm that spreads what is no number over an image.
    torch.testing.assert_close(with_gradient(*call)[1].cpu(), exactly(*call, device="cpu")[1].float())


def test_no_images_give_a_gradient_of_zeros():
    images, filters, bias = drawn(0, 3, 4, 4)
    y, gradient = with_gradient(images, filters, bias, "gelu", torch.bfloat16)
    assert y.shape == (0, 24, 3, 3) and torch.equal(gradient, torch.zeros_like(bias))


def test_more_than_2_to_the_31_results():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    images, filters, bias = drawn(290_000, 1, 32, 32)
    y, gradient = with_gradient(images, filters, bias, "relu", torch.bfloat16)
    assert y.numel() > 2**31
    torch.manual_seed(1)
    above = torch.randn(y.shape, device="cuda").bfloat16()
    # Of bias + the convolution, rounded once: where that is zero, so is the gradient.
    totals = sum(
        torch.where(part > 0, of_part, 0).sum((0, 2, 3), dtype=torch.float64)
        for part, of_part in zip(y.split(10_000), above.split(10_000), strict=True)
    )
    assert rules.relative_error(gradient, totals) <= 1e-5
    for end in (slice(0, 100), slice(-100, None)):
        assert torch.equal(y[end], patch_convolution(images[end], filters, bias, "relu", torch.bfloat16))


@pytest.mark.parametrize("dtype", LARGEST_ERROR)
def test_fifty_runs_give_the_same_bits(dtype):
    images, filters, bias = drawn(100, 3, 32, 32)
    rules.fifty_runs_give_the_same_bits(lambda x: with_gradient(x, filters, bias, "gelu", dtype), [images])


def test_a_graph_replays_it_on_new_values():
    images, filters, bias = drawn(10, 3, 9, 9)
    changed, *_ = drawn(10, 3, 9, 9, seed=2)
    rules.a_graph_replays_it_on_new_values(lambda x: patch_convolution(x, filters, bias, "gelu"), [images], changed)


def test_it_runs_on_the_current_stream():
    images, filters, bias = drawn(100, 3, 32, 32)
    changed, *_ = drawn(100, 3, 32, 32, seed=2)
    rules.it_runs_on_the_current_stream(lambda x: patch_convolution(x, filters, bias, "gelu"), [images], changed)


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    images, filters, bias = drawn(10, 3, 9, 9)
    rules.torch_compile_takes_it_whole(lambda b: patch_convolution(images, filters, b, "gelu"), [bias], 1e-6)


@pytest.mark.parametrize("dtype", LARGEST_ERROR)
def test_the_operations_keep_pytorch_s_rules(dtype):
    images, filters, bias = drawn(2, 3, 5, 4)
    operations = torch.ops.reread_kernels
    torch.library.opcheck(operations.patch_convolution, (images, filters, bias.clone().requires_grad_(), "gelu", dtype))
    y = patch_convolution(images, filters, bias, "gelu", dtype)
    torch.library.opcheck(operations.patch_convolution_backward, (y, images, filters, bias, "gelu"))


def test_in_float64_its_gradient_matches_finite_differences():
    images, filters, bias = (tensor.double() for tensor in drawn(2, 1, 4, 3))
    assert torch.autograd.gradcheck(lambda b: patch_convolution(images, filters, b, "gelu"), bias.requires_grad_())


def test_the_compiled_operations_refuse_what_would_read_outside():
    images, filters, bias = drawn(2, 3, 4, 4)
    y = patch_convolution(images, filters, bias).movedim(1, -1)
    compiled, rows = torch.ops.reread_kernels_compiled, images.movedim(1, -1)
    with pytest.raises(RuntimeError, match="1 or 3"):
        compiled.patch_convolution(rows[0], filters, bias, 0, torch.float32)
    with pytest.raises(RuntimeError, match=r"filters must be \[24, 3, 2, 2\]"):
        compiled.patch_convolution(rows, filters[:8], bias, 0, torch.float32)
    with pytest.raises(RuntimeError, match="float32, contiguous, on one GPU"):
        compiled.patch_convolution(rows, filters.half(), bias, 0, torch.float32)
    with pytest.raises(RuntimeError, match="activation must be"):
        compiled.patch_convolution(rows, filters, bias, 4, torch.float32)
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled.patch_convolution(rows, filters, bias, 0, torch.int32)
    with pytest.raises(RuntimeError, match="dy must be as the result"):
        compiled.patch_convolution_backward(y[:1].contiguous(), rows, filters, bias, 0)
