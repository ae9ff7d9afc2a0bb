"""Finite differences on the CPU: the reference behind the operation, its order, its gradients, and what it refuses."""

import itertools
import math

import pytest
import torch

from cuda_ext import library
from cuda_ext.bench import relative_error
from cuda_ext.finite_differences import AXES, COEFFICIENTS, KERNELS, check, finite_differences, reference
from cuda_ext.finite_differences.cases import LARGEST_ERROR, by_conv3d

quiet = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def grid(*shape, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)


def by_its_formula(f, axis, spacing):
    """The sum of the definition, one point at a time, in float64."""
    lines = f.double().movedim(AXES.index(axis) - 3, -1)
    n = lines.shape[-1]
    points = [
        sum(weight * (lines[..., (i + k) % n] - lines[..., (i - k) % n]) for k, weight in enumerate(COEFFICIENTS, 1))
        for i in range(n)
    ]
    return torch.stack(points, -1).movedim(-1, AXES.index(axis) - 3) / spacing


@quiet
@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(4, 5, 6), (9, 4, 11), (2, 3, 12, 10, 8), (0, 5, 5, 5)])
def test_it_is_the_sum_of_its_definition(axis, shape):
    for kernel in KERNELS:
        f = grid(*shape)
        torch.testing.assert_close(finite_differences(f, axis, 0.3, kernel), by_its_formula(f, axis, 0.3))
        narrow = f.float()
        result = finite_differences(narrow, axis, 0.3, kernel)
        assert result.dtype == torch.float32 and result.is_contiguous()
        assert relative_error(result, by_its_formula(narrow, axis, 0.3)) <= LARGEST_ERROR
        assert torch.equal(result, reference(narrow, axis, 0.3))


@quiet
@pytest.mark.parametrize("axis", AXES)
def test_twice_the_points_leave_a_256th_of_the_error(axis):
    """The derivative of a wave is known, and order 8 is what the coefficients promise."""
    errors = []
    for points in (16, 32, 64):
        place = AXES.index(axis) - 3
        x = torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)
        shape = [points if dim == place else 4 for dim in (-3, -2, -1)]
        f = x.sin().view([-1 if dim == place else 1 for dim in (-3, -2, -1)]).expand(shape)
        exact = x.cos().view([-1 if dim == place else 1 for dim in (-3, -2, -1)]).expand(shape)
        errors.append((finite_differences(f, axis, 2 * math.pi / points) - exact).abs().max().item())
    orders = [math.log2(coarse / fine) for coarse, fine in itertools.pairwise(errors)]
    assert all(7.8 < order < 8.1 for order in orders), orders


@quiet
@pytest.mark.parametrize("axis", AXES)
def test_the_convolution_beside_it_computes_the_same(axis):
    f = grid(6, 7, 8)
    torch.testing.assert_close(by_conv3d(axis)(f), finite_differences(f, axis))


@quiet
def test_strides_are_followed_and_the_result_is_contiguous():
    f = grid(6, 8, 10)
    for given in (f.transpose(0, 2), f[:, ::2], f[..., ::2], f[:1].expand(6, 8, 10)):
        for axis in AXES:
            result = finite_differences(given, axis)
            torch.testing.assert_close(result, by_its_formula(given, axis, 1.0))
            assert result.is_contiguous()


@quiet
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("axis", AXES)
def test_the_operation_keeps_pytorch_s_rules(dtype, axis):
    f = grid(4, 5, 6, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.finite_differences, (f.requires_grad_(), axis, 0.5, "tiled"))
    turned = f.detach().transpose(0, 2)
    torch.library.opcheck(torch.ops.reread_kernels.finite_differences, (turned, axis, 0.5, "direct"))


@quiet
@pytest.mark.parametrize("axis", AXES)
def test_gradients_match_those_that_are_measured(axis):
    f = grid(4, 5, 4).requires_grad_()
    assert torch.autograd.gradcheck(finite_differences, (f, axis, 0.5))
    assert torch.autograd.gradgradcheck(finite_differences, (f, axis, 0.5))


@quiet
def test_what_it_does_not_take_is_refused_with_what_came():
    f = grid(4, 5, 6)
    with pytest.raises(ValueError, match="kernel is direct, tiled, got 'fast'"):
        finite_differences(f, kernel="fast")
    with pytest.raises(ValueError, match="axis is z, y, x, got 't'"):
        finite_differences(f, "t")
    for spacing in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=f"finite and not 0, got {spacing}"):
            finite_differences(f, spacing=spacing)
    with pytest.raises(ValueError, match="float64 or float32, got torch.float16"):
        finite_differences(f.half())
    with pytest.raises(ValueError, match=r"\[..., Z, Y, X\], got \(5, 6\)"):
        finite_differences(f[0])
    with pytest.raises(ValueError, match=r"at least 4 points along y, got \(4, 3, 6\)"):
        finite_differences(f[:, :3], "y")
    with pytest.raises(ValueError, match=r"at most 2\^30 points in a grid, got \(1025, 1024, 1024\)"):
        finite_differences(f[:1, :1, :1].expand(1025, 1024, 1024))
    with pytest.raises(ValueError, match="strided tensor, got layout torch.sparse_coo"):
        check(f.to_sparse(), "x", 1.0, "tiled")


def test_strict_mode_refuses_the_reference():
    library.strict(True)
    with pytest.raises(library.KernelError, match="finite_differences has no kernel to run"):
        finite_differences(grid(4, 4, 4))
