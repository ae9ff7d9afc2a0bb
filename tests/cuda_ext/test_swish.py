"""Swish against the formulas that are printed, autograd's own derivative, and finite differences."""

import pytest
import torch

from cuda_ext import library
from cuda_ext.swish import DTYPES, HALF, swish

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")
X = torch.linspace(-8, 8, 1001, dtype=torch.float64)


def derivative(function, x):
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(function(x).sum(), x)
    return gradient


def test_the_derivative_is_the_one_that_the_blog_prints():
    value, gate = X * torch.sigmoid(X), torch.sigmoid(X)
    assert torch.equal(swish(X), value)
    torch.testing.assert_close(derivative(swish, X), value + gate * (1 - value), rtol=0, atol=1e-15)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 3.0, -1.0])
def test_beta_gives_the_paper_s_derivative(beta):
    b = torch.tensor(beta, dtype=torch.float64)
    value, gate = X * torch.sigmoid(b * X), torch.sigmoid(b * X)
    expected = b * value + gate * (1 - b * value)
    torch.testing.assert_close(derivative(lambda x: swish(x, b), X), expected, rtol=0, atol=1e-14)


def test_beta_of_one_is_swish_and_of_zero_is_half_of_x():
    torch.testing.assert_close(swish(X, torch.ones((), dtype=torch.float64)), swish(X), rtol=0, atol=0)
    torch.testing.assert_close(swish(X, torch.zeros((), dtype=torch.float64)), X / 2, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(), (3,)])
def test_gradients_of_x_and_beta_match_finite_differences(shape):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    beta = torch.rand(shape, generator=generator, dtype=torch.float64).add_(0.5).requires_grad_()
    for inputs in [(x, beta), (x,), (x.detach(), beta), (x, beta.detach())]:
        assert torch.autograd.gradcheck(swish, inputs)
        assert torch.autograd.gradgradcheck(swish, inputs)


def test_beta_by_channel_acts_on_its_channel_alone():
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    beta = torch.tensor([0.5, 1.0, 2.0])
    for channel in range(3):
        torch.testing.assert_close(swish(x, beta)[:, channel], swish(x[:, channel], beta[channel]))
    with pytest.raises(ValueError, match="one per channel"):
        swish(x, torch.ones(1, 3))


def test_x_alone_is_kept_for_the_backward_pass():
    kept = []
    x = torch.randn(100, 100, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, lambda tensor: tensor):
        swish(x)
    assert [tensor.data_ptr() for tensor in kept] == [x.data_ptr()]


def test_large_inputs_neither_overflow_nor_give_nan():
    x = torch.tensor([-1e30, -1e4, -100.0, 0.0, 100.0, 1e4, 1e30])
    assert torch.isfinite(swish(x)).all()
    torch.testing.assert_close(derivative(swish, x[1:-1]), torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0]), rtol=0, atol=1e-6)


def inputs_of(shape, beta_shape, dtype, beta_dtype=None):
    """x and beta; a ``beta_shape`` of None is no beta."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    if beta_shape is None:
        return x, None
    return x, torch.randn(beta_shape, generator=generator, dtype=torch.float64).to(beta_dtype or dtype)


@pytest.mark.parametrize("beta_dtype", [None, torch.float32])
@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("beta_shape", [(), (5,)])
def test_half_precision_is_rounded_once_whatever_beta_s_dtype(beta_shape, dtype, beta_dtype):
    x, beta = inputs_of((4, 5, 3), beta_shape, dtype, beta_dtype)
    wide_x, wide_beta = x.float().requires_grad_(), beta.float().requires_grad_()
    gradient = torch.randn(x.shape, generator=torch.Generator().manual_seed(3)).to(dtype)
    result, wide = swish(x.requires_grad_(), beta.requires_grad_()), swish(wide_x, wide_beta)
    assert torch.equal(result, wide.to(dtype))
    gradients = torch.autograd.grad(result, (x, beta), gradient)
    exact = torch.autograd.grad(wide, (wide_x, wide_beta), gradient.float())
    assert [slope.dtype for slope in gradients] == [dtype, beta.dtype]
    assert all(torch.equal(a, b.to(a.dtype)) for a, b in zip(gradients, exact, strict=True))


@pytest.mark.parametrize("on", [False, True])
def test_autocast_leaves_x_s_dtype(on):
    x, beta = inputs_of((4, 5), (), torch.bfloat16, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
        assert swish(x, beta).dtype == torch.bfloat16
        assert swish(x.float(), beta).dtype == torch.float32


def layouts(shape):
    """x of one shape in many memory orders: dense ones, one with gaps, one whose elements share memory."""
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    yield x
    yield x.permute(*reversed(range(x.ndim))).contiguous().permute(*reversed(range(x.ndim)))
    yield torch.stack([x, x], dim=-1)[..., 0]
    yield x[:1].expand(shape)
    if x.ndim == 4:
        yield x.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("beta_shape", [None, (), (5,)])
@pytest.mark.parametrize("shape", [(0, 5), (4, 5), (2, 5, 3, 2)])
def test_x_s_memory_order_is_kept(shape, beta_shape):
    _, beta = inputs_of(shape, beta_shape, torch.float64)
    spread = 1 if beta is None else beta if beta.ndim == 0 else beta.reshape(-1, *[1] * (len(shape) - 2))
    for x in layouts(shape):
        result = swish(x, beta)
        assert result.stride() == torch.empty_like(x).stride() or x.numel() == 0
        torch.testing.assert_close(result, x * torch.sigmoid(spread * x), rtol=1e-14, atol=1e-15)


@pytest.mark.parametrize(("beta_shape", "dtype"), list(zip([(), None, (5,), (5,)], DTYPES, strict=True)))
def test_the_operations_keep_pytorch_s_rules(beta_shape, dtype):
    x, beta = inputs_of((2, 5, 3, 2), beta_shape, dtype)
    gradient = torch.randn_like(x).requires_grad_()
    beta = beta if beta is None else beta.requires_grad_()
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.swish, (x, beta))
    torch.library.opcheck(torch.ops.reread_kernels.swish_backward, (gradient, x, beta))
    if beta is not None:
        torch.library.opcheck(torch.ops.reread_kernels.swish_backward_beta, (gradient, x, beta))


def test_beta_s_gradient_is_left_out_where_none_asks_for_it():
    x, beta = inputs_of((4, 5), (), torch.float64)
    names = []

    class Recorded(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            names.append(function.name())
            return function(*arguments, **(keywords or {}))

    for asks, name in [(False, "reread_kernels::swish_backward"), (True, "reread_kernels::swish_backward_beta")]:
        names.clear()
        with Recorded():
            swish(x.requires_grad_(), beta.requires_grad_(asks)).sum().backward()
        assert [called for called in names if "swish_backward" in called] == [name]


def test_what_it_does_not_take_is_refused_with_what_came():
    x, beta = inputs_of((4, 5), (5,), torch.float32)
    with pytest.raises(ValueError, match=r"one per channel.* shape \(4,\) for x of \(4, 5\)"):
        swish(x, beta[:4])
    with pytest.raises(ValueError, match="one per channel"):
        swish(x[0], beta)
    with pytest.raises(ValueError, match="beta of torch.float64"):
        swish(x, beta.double())
    with pytest.raises(ValueError, match="got torch.int64"):
        swish(x.long())
    with pytest.raises(ValueError, match="one device, got cpu and meta"):
        swish(x, beta.to("meta"))
    with pytest.raises(ValueError, match=r"gradient of swish must be as x.* got \(4, 4\)"):
        torch.ops.reread_kernels.swish_backward(x[:, 1:], x, beta)


def test_strict_mode_refuses_the_reference(monkeypatch):
    monkeypatch.setattr(library, "_strict", True)
    with pytest.raises(library.KernelError, match="swish has no kernel to run"):
        swish(X)
