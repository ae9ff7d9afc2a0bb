"""Maximum pooling on the CPU: the reference behind the operation, its gradients, and what it refuses."""

import pytest
import torch
from torch.nn import functional

from cuda_ext import library
from cuda_ext.max_pool2d import DTYPES, check, max_pool2d

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
SHAPES = [(2, 3, 4, 6), (2, 3, 5, 7), (1, 1, 2, 2), (3, 8, 2, 3), (0, 3, 4, 4)]
# Windows of 3 x 3 begin in the padding, so that an image of one row or column has some.
NARROW = [(2, 3, 1, 1), (2, 3, 1, 6), (2, 3, 5, 1)]
WINDOWS = [*((2, shape) for shape in SHAPES), *((3, shape) for shape in SHAPES + NARROW)]


def images(*shape, dtype=torch.float64):
    """Whole numbers, so that windows have equal maxima."""
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def of_pytorch(x, window):
    return functional.max_pool2d(x, window, stride=2, padding=window - 2)


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("window", "shape"), WINDOWS)
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_maxima_and_gradients_are_pytorch_s(dtype, window, shape, memory_format):
    """Half precision is added up in float32, where windows overlap, and rounded once."""
    x = images(*shape, dtype=dtype).contiguous(memory_format=memory_format).requires_grad_()
    y = max_pool2d(x, window)
    assert y.dtype == dtype and torch.equal(y, of_pytorch(x, window))
    assert y.movedim(1, -1).is_contiguous()
    above = torch.randn(y.shape, dtype=torch.float64).to(dtype)
    (gradient,) = torch.autograd.grad(y, x, above)
    wide = torch.promote_types(dtype, torch.float32)
    (expected,) = torch.autograd.grad(of_pytorch(x.to(wide), window), x, above.to(wide))
    assert gradient.dtype == dtype and torch.equal(gradient, expected)


@quiet
@pytest.mark.parametrize(
    ("window", "shape"), [(2, (2, 3, 1, 6)), (2, (2, 3, 6, 1)), (2, (2, 0, 4, 4)), (3, (2, 3, 0, 4)), (3, (2, 0, 4, 4))]
)
def test_images_without_a_window_give_nothing_and_a_gradient_of_zeros(window, shape):
    x = images(*shape).requires_grad_()
    y = max_pool2d(x, window)
    assert y.shape == (*shape[:2], *((side + window - 2) // 2 for side in shape[2:]))
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, torch.zeros_like(x))


@quiet
def test_a_nan_is_larger_than_any_number_and_gets_the_gradient():
    x = torch.tensor([[1.0, float("nan"), -float("inf"), -float("inf")], [float("inf"), 2.0, -float("inf"), 0.0]])
    x = x[None, None].requires_grad_()
    y = max_pool2d(x)
    assert y.isnan().flatten().tolist() == [True, False] and y[..., 1].item() == 0
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert gradient.flatten().tolist() == [0, 1, 0, 0, 0, 0, 0, 1]


@quiet
def test_of_overlapping_windows_too_the_last_nan_or_the_first_of_equal_numbers_is_the_maximum():
    x = images(4, 8, 9, 8)
    drawn = torch.rand(x.shape, generator=torch.Generator().manual_seed(1))
    x = x.masked_fill(drawn < 0.1, torch.nan).masked_fill(drawn > 0.6, -torch.inf)
    x[0] = x[1, :, :4] = -torch.inf
    x.requires_grad_()
    y, expected = max_pool2d(x, 3), of_pytorch(x, 3)
    assert y.isnan().any() and y.isneginf().any() and torch.equal(y.nan_to_num(7), expected.nan_to_num(7))
    above = torch.randn(y.shape, dtype=torch.float64)
    (gradient,), (of_expected,) = (torch.autograd.grad(result, x, above) for result in (y, expected))
    assert torch.equal(gradient, of_expected)


@quiet
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("window", [2, 3])
@pytest.mark.parametrize("shape", [(2, 3, 4, 4), (2, 3, 5, 7), (0, 3, 4, 4), (1, 1, 2, 2)])
def test_the_operations_keep_pytorch_s_rules(dtype, window, shape):
    operations = torch.ops.reread_kernels
    x = images(*shape, dtype=dtype).requires_grad_()
    torch.library.opcheck(operations.max_pool2d, (x, window))
    torch.library.opcheck(operations.max_pool2d, (x.detach().contiguous(memory_format=torch.channels_last), window))
    y, index = operations.max_pool2d(x.detach(), window)
    above = torch.ones_like(y).requires_grad_()
    torch.library.opcheck(operations.max_pool2d_backward, (above, index, *shape[2:], window))


@quiet
@pytest.mark.parametrize("window", [2, 3])
def test_gradients_of_both_orders_match_finite_differences(window):
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(max_pool2d, (x, window))
    assert torch.autograd.gradgradcheck(max_pool2d, (x, window))


@quiet
def test_autocast_changes_nothing():
    x = images(2, 3, 4, 4, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert max_pool2d(x).dtype == torch.float32


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    x = images(2, 3, 4, 4)
    with pytest.raises(ValueError, match=r"float64, float32, float16, bfloat16, got torch.int64"):
        max_pool2d(x.long())
    with pytest.raises(ValueError, match=r"images \[N, C, H, W\], got \(3, 4, 4\)"):
        max_pool2d(x[0])
    with pytest.raises(ValueError, match="strided tensor, got layout torch.sparse_coo"):
        check(x.to_sparse(), 2)
    with pytest.raises(ValueError, match="window of 2 or 3, got 4"):
        max_pool2d(x, 4)
    y, index = torch.ops.reread_kernels.max_pool2d(x, 2)
    backward = torch.ops.reread_kernels.max_pool2d_backward
    with pytest.raises(ValueError, match=r"index of uint8 as the gradient, .* got \(2, 3, 2, 2\) of torch.int64"):
        backward(y, index.long(), 4, 4, 2)
    for window in (2, 3):
        with pytest.raises(ValueError, match=r"3 x 2 windows for 6 x 4 pixels, got \(2, 3, 2, 2\)"):
            backward(y, index, 6, 4, window)
    with pytest.raises(ValueError, match=r"2 x 3 windows for 4 x 5 pixels, got \(2, 3, 2, 2\)"):
        backward(y, index, 4, 5, 3)


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(library.KernelError, match="max_pool2d has no kernel to run"):
        max_pool2d(images(1, 1, 2, 2))
