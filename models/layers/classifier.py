"""The last layer of a text network."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cuda_ext.branch import Branch, current_branch

# A training step on a GPU adds up to this many products without cuBLAS, which takes three kernels and 14 us for
# 64 x 100 x 5, where these take 6. Of more, cuBLAS is faster.
MOST_PRODUCTS = 1 << 20


class Classifier(nn.Linear):
    """A linear layer that stays in float32 under autocast: its few products take less time than casts for them.

    In a training step the gradients of its parameters are computed beside the rest of the backward pass.
    """

    def forward(self, x: Tensor) -> Tensor:
        """x float [N, width] -> logits [N, classes] of the weights' dtype."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.weight.dtype)
            beside = current_branch() if x.is_cuda else None
            if beside is None:
                return functional.linear(x, self.weight, self.bias)
            logits: Tensor = _Product.apply(x, self.weight, self.bias, beside)  # type: ignore[no-untyped-call]
            return logits


class _Product(torch.autograd.Function):
    """``functional.linear`` of x [N, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, beside: Branch) -> Tensor:
        ctx.beside = beside
        ctx.save_for_backward(x, weight, bias)
        if x.numel() * len(weight) <= MOST_PRODUCTS:
            return (x.unsqueeze(1) * weight).sum(-1) + bias
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias = ctx.saved_tensors
        of_parameters = ctx.beside(lambda: (gradient.mT @ x, gradient.sum(0)))
        of_x = gradient @ weight
        return of_x, *ctx.beside.gradients((weight, bias), of_parameters), None
