"""Derivatives of a recurrent network through time: by autograd, in closed form where g is linear, and as printed.

The network is h_t = g(W x_t + U h_{t-1}). All in float64.

Shape legend: N rows, T steps, H units, I inputs.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from models.layers.cells import Recurrence
from reread.storage.arrays import Float64Array

DTYPE = torch.float64
# Rows [N, T, I] and first states [N, H] -> the states before and after each step, T + 1 of [N, H].
Network = Callable[[Tensor, Tensor], list[Tensor]]


def of_radius(radius: float, units: int, generator: torch.Generator) -> Tensor:
    """A Gaussian matrix float64 [H, H], scaled so that its largest eigenvalue has modulus ``radius``."""
    matrix = torch.randn(units, units, generator=generator, dtype=DTYPE)
    scaled: Tensor = matrix * (radius / torch.linalg.eigvals(matrix).abs().max())
    return scaled


def linear_network(inward: Tensor, matrix: Tensor) -> Network:
    """h_t = W x_t + U h_{t-1}: the recurrent network with g(o) = o. W [H, I], or one per row [N, H, I]."""

    def run(x: Tensor, state: Tensor) -> list[Tensor]:
        states = [state]
        for inputs in x.unbind(1):
            states.append((inward @ inputs.unsqueeze(-1)).squeeze(-1) + states[-1] @ matrix.T)
        return states

    return run


def network_of(layer: Recurrence) -> Network:
    return lambda x, state: [state, *(step.state for step in layer.steps(x, state))]


def tanh_network(inward: Tensor, matrix: Tensor) -> Network:
    """h_t = tanh(W x_t + U h_{t-1})."""
    layer = Recurrence(inward.shape[1], inward.shape[0], "rnn").to(DTYPE)
    with torch.no_grad():
        layer.weight_ih_l0.copy_(inward)
        layer.weight_hh_l0.copy_(matrix)
        layer.bias_ih_l0.zero_()
        layer.bias_hh_l0.zero_()
    return network_of(layer)


def jacobians(network: Network, x: Tensor, units: int) -> Tensor:
    """x [T, I] -> dh_T/dh_t for t = T, T-1, ..., 0, by autograd, [T + 1, H, H]; the first state is zero.

    The input is read by H rows, and row i is asked for the gradient of unit i: one backward pass for all.
    """
    rows = x.expand(units, *x.shape)
    states = network(rows, x.new_zeros(units, units, requires_grad=True))
    gradients = torch.autograd.grad(states[-1].diagonal().sum(), states)
    return torch.stack(gradients[::-1])


def powers(matrix: Tensor, count: int) -> Tensor:
    """U^0, U^1, ..., U^count, [count + 1, H, H]: dh_T/dh_t in closed form where g is linear."""
    products = [torch.eye(len(matrix), dtype=matrix.dtype)]
    for _ in range(count):
        products.append(matrix @ products[-1])
    return torch.stack(products)


def weight_gradient(inward: Tensor, matrix: Tensor, x: Tensor) -> Tensor:
    """alpha_T = dh_T/dW of the linear network by autograd: each unit's, with regard to each entry of W, [H, H, I]."""
    units = len(matrix)
    copies = inward.expand(units, *inward.shape).clone().requires_grad_()
    last = linear_network(copies, matrix)(x.expand(units, *x.shape), x.new_zeros(units, units))[-1]
    return torch.autograd.grad(last.diagonal().sum(), copies)[0]


def with_input(x_t: Tensor, units: int) -> Tensor:
    """X_t = d(W x_t)/dW, [H, H, I]: of unit i with regard to row i of W, the input."""
    return torch.eye(units, dtype=x_t.dtype).unsqueeze(-1) * x_t


def expanded(matrix: Tensor, x: Tensor) -> Tensor:
    """alpha_T in closed form where g is linear: sum over k of U^(T-k) X_k, [H, H, I]."""
    return torch.einsum("kij,kl->ijl", powers(matrix, len(x) - 1).flip(0), x)


def as_printed(matrix: Tensor, x: Tensor) -> Tensor:
    """alpha_T as the post prints its expansion, g linear: alpha_t = X_t + U (X_{t-1} + alpha_{t-2}), [H, H, I]."""
    units = len(matrix)
    alpha = torch.zeros(units, units, x.shape[1], dtype=x.dtype)
    if len(x) % 2:
        alpha = with_input(x[0], units)
    for step in range(len(x) % 2, len(x), 2):
        inside = with_input(x[step], units) + alpha
        alpha = with_input(x[step + 1], units) + torch.einsum("ij,jkl->ikl", matrix, inside)
    return alpha


def norms(matrices: Tensor) -> dict[str, Float64Array]:
    """Spectral and Frobenius norm of each of [T + 1, H, H]."""
    return {
        "spectral": torch.linalg.matrix_norm(matrices, 2).numpy(),
        "frobenius": torch.linalg.matrix_norm(matrices).numpy(),
    }
