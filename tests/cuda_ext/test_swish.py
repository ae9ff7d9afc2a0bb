"""Swish against the formulas that are printed, autograd's own derivative, and finite differences."""

import pytest
import torch

from cuda_ext.swish import kernels, swish

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
    assert torch.autograd.gradcheck(swish, (x, beta))
    assert torch.autograd.gradcheck(swish, (x,))
    assert torch.autograd.gradgradcheck(swish, (x, beta))


def test_beta_by_channel_acts_on_its_channel_alone():
    x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    beta = torch.tensor([0.5, 1.0, 2.0])
    for channel in range(3):
        torch.testing.assert_close(swish(x, beta)[:, channel], swish(x[:, channel], beta[channel]))
    with pytest.raises(ValueError, match="one a channel"):
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


def test_the_reference_says_that_it_is_what_runs():
    assert kernels() == "reference"
