"""Swish, x sigmoid(beta x), in a form that keeps x alone for the backward pass.

Source: Ramachandran, Zoph and Le, Searching for Activation Functions, 2017, arXiv 1710.05941, section 5.
Left to autograd the product keeps sigmoid(beta x) beside x; here it is computed again from x, which in a
DenseNet, where activations fill the memory, saves half of what the activation holds.
"""

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx


def kernels() -> str:
    """Which implementation ``swish`` runs: ``reference`` is the PyTorch code of this file."""
    return "reference"


def swish(x: Tensor, beta: Tensor | None = None) -> Tensor:
    """Return x sigmoid(beta x), of the shape and dtype of ``x``.

    x: floating point, [N, C, ...] where beta is one a channel, else any shape.
    beta: None (which is 1), a scalar tensor, or [C], one a channel. It gets a gradient if it asks for one.
    """
    if beta is None:
        return _Swish.apply(x)
    if beta.ndim == 1:
        beta = beta.reshape(-1, *[1] * (x.ndim - 2))
    elif beta.ndim != 0:
        raise ValueError(f"beta must be a scalar or one a channel [C], not of shape {tuple(beta.shape)}")
    return _SwishBeta.apply(x, beta)


class _Swish(torch.autograd.Function):
    """swish'(x) = swish(x) + sigmoid(x) (1 - swish(x))."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * torch.sigmoid(x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        gate = torch.sigmoid(x)
        value = x * gate
        return gradient * (value + gate * (1 - value))


class _SwishBeta(torch.autograd.Function):
    """d/dx = beta swish(x) + sigmoid(beta x) (1 - beta swish(x)); d/dbeta = swish(x) (x - swish(x))."""

    @staticmethod
    def forward(x: Tensor, beta: Tensor) -> Tensor:
        return x * torch.sigmoid(beta * x)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        x, beta = ctx.saved_tensors
        gate = torch.sigmoid(beta * x)
        value = x * gate
        scaled = beta * value
        gradient_x = gradient * (scaled + gate * (1 - scaled))
        if not ctx.needs_input_grad[1]:
            return gradient_x, None
        return gradient_x, (gradient * value * (x - value)).sum_to_size(beta.shape)
