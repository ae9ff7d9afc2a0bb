"""Derivatives through time: autograd's, the closed form, and what the post prints."""

import pytest
import torch
from torch import Tensor

from models.layers.cells import NAMES, Recurrence
from reread.studies.jacobians import (
    DTYPE,
    as_printed,
    expanded,
    jacobians,
    linear_network,
    network_of,
    norms,
    of_radius,
    powers,
    tanh_network,
    weight_gradient,
    with_input,
)

UNITS, INPUTS, STEPS = 5, 3, 9
ROUNDING = {"rtol": 1e-12, "atol": 1e-13}


def drawn(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """W [H, I], U [H, H] of spectral radius 0.9, x [T, I]."""
    generator = torch.Generator().manual_seed(seed)
    inward = torch.randn(UNITS, INPUTS, generator=generator, dtype=DTYPE)
    matrix = of_radius(0.9, UNITS, generator)
    return inward, matrix, torch.randn(STEPS, INPUTS, generator=generator, dtype=DTYPE)


@pytest.mark.parametrize("radius", [0.5, 1.0, 1.5])
def test_a_matrix_has_the_spectral_radius_that_was_asked_for(radius):
    matrix = of_radius(radius, 20, torch.Generator().manual_seed(1))
    assert torch.linalg.eigvals(matrix).abs().max().item() == pytest.approx(radius, rel=1e-12)


@pytest.mark.parametrize("cell", NAMES)
def test_jacobians_are_those_of_one_backward_pass_a_unit(cell):
    _, _, x = drawn()
    torch.manual_seed(2)
    layer = Recurrence(INPUTS, UNITS, cell).to(DTYPE)
    derivatives = jacobians(network_of(layer), x, UNITS)
    states = layer(x[None])[0].detach()
    assert torch.equal(derivatives[0], torch.eye(UNITS, dtype=DTYPE))
    for back in range(1, STEPS + 1):
        # From the state after step T - back, or from zero.
        start = states[STEPS - back - 1] if back < STEPS else torch.zeros(UNITS, dtype=DTYPE)
        rest = x[STEPS - back :]
        expected = torch.autograd.functional.jacobian(
            lambda h, rest=rest: layer(rest[None], None, h[None])[0, -1], start
        )
        torch.testing.assert_close(derivatives[back], expected, **ROUNDING)


def test_with_linear_g_the_jacobian_is_a_power_of_the_matrix():
    inward, matrix, x = drawn()
    torch.testing.assert_close(jacobians(linear_network(inward, matrix), x, UNITS), powers(matrix, STEPS), **ROUNDING)
    torch.testing.assert_close(powers(matrix, 3)[3], matrix @ matrix @ matrix, **ROUNDING)


def test_with_tanh_each_step_is_the_matrix_times_the_slopes():
    """dh_T/dh_{T-1} = g' U with g' = 1 - h_T^2, where the post's alpha has it."""
    inward, matrix, x = drawn()
    network = tanh_network(inward, matrix)
    last = network(x[None], x.new_zeros(1, UNITS))[-1][0]
    slopes = torch.diag(1 - last.detach() ** 2)
    torch.testing.assert_close(jacobians(network, x, UNITS)[1], slopes @ matrix, **ROUNDING)


def test_the_norms_are_the_largest_singular_value_and_the_root_of_the_sum_of_squares():
    matrix = torch.diag(torch.tensor([3.0, -4.0], dtype=DTYPE))[None]
    of_matrix = norms(matrix)
    assert of_matrix["spectral"] == pytest.approx([4.0]) and of_matrix["frobenius"] == pytest.approx([5.0])


@pytest.mark.parametrize("steps", range(1, STEPS + 1))
def test_the_closed_form_of_alpha_equals_autograd(steps):
    inward, matrix, x = drawn()
    alpha = weight_gradient(inward, matrix, x[:steps])
    expected = torch.autograd.functional.jacobian(
        lambda weights: linear_network(weights, matrix)(x[None, :steps], x.new_zeros(1, UNITS))[-1][0], inward
    )
    torch.testing.assert_close(alpha, expected, **ROUNDING)
    torch.testing.assert_close(expanded(matrix, x[:steps]), expected, **ROUNDING)


def test_the_expansion_as_printed_drops_one_factor_in_two():
    """X_3 + U (X_2 + X_1) where it is X_3 + U (X_2 + U X_1); up to two steps there is nothing to drop."""
    _, matrix, x = drawn()
    first, second, third = (with_input(step, UNITS) for step in x[:3])

    def times(left: Tensor, right: Tensor) -> Tensor:
        return torch.einsum("ij,jkl->ikl", left, right)

    torch.testing.assert_close(as_printed(matrix, x[:1]), first, **ROUNDING)
    torch.testing.assert_close(as_printed(matrix, x[:2]), expanded(matrix, x[:2]), **ROUNDING)
    torch.testing.assert_close(as_printed(matrix, x[:3]), third + times(matrix, second + first), **ROUNDING)
    right = third + times(matrix, second + times(matrix, first))
    torch.testing.assert_close(expanded(matrix, x[:3]), right, **ROUNDING)
    assert (as_printed(matrix, x[:3]) - right).norm() > 0.1 * right.norm()
