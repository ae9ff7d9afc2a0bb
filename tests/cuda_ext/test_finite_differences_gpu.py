"""Finite differences' kernels on a GPU, in strict mode: their reference can not stand in for them."""

import math

import pytest
import torch

from cuda_ext.finite_differences import AXES, KERNELS, finite_differences, reference
from cuda_ext.finite_differences.cases import LARGEST_ERROR, by_conv3d
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Fewer points than the stencil has, one column, whole tiles, tiles that stick out by less and by more than the halo,
# several grids.
SHAPES = [
    (4, 5, 7), (9, 4, 33), (64, 64, 64), (65, 66, 67), (63, 12, 62), (7, 132, 31), (5, 8, 1), (130, 4, 4), (4, 4, 1030),
    (2, 12, 70, 33), (2, 3, 5, 6, 64),
]  # fmt: skip
BOTH = pytest.mark.parametrize(("axis", "kernel"), [(axis, kernel) for axis in AXES for kernel in KERNELS])


def grid(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def along(axis, kernel):
    return lambda f: finite_differences(f, axis, 0.5, kernel)


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_error_against_float64_is_rounding_and_both_kernels_give_the_same_bits(shape, axis):
    if shape[AXES.index(axis) - 3] < 4:
        pytest.skip("refused")
    f = grid(*shape)
    results = [finite_differences(f, axis, 0.3, kernel) for kernel in KERNELS]
    assert rules.relative_error(results[0], reference(f.double(), axis, 0.3)) <= LARGEST_ERROR
    assert torch.equal(*results) and all(result.is_contiguous() for result in results)


@BOTH
def test_the_derivative_of_a_wave(axis, kernel):
    place = AXES.index(axis) - 3
    x = torch.arange(64, device="cuda", dtype=torch.float64) * (2 * math.pi / 64)
    view = [-1 if dim == place else 1 for dim in (-3, -2, -1)]
    f, exact = (wave.view(view).expand(64, 64, 64) for wave in (x.sin().float(), x.cos()))
    assert rules.relative_error(finite_differences(f, axis, 2 * math.pi / 64, kernel), exact) <= 2e-6


@pytest.mark.parametrize("axis", AXES)
def test_the_convolution_beside_it_computes_the_same(axis):
    f = grid(40, 30, 50)
    assert rules.relative_error(by_conv3d(axis)(f), finite_differences(f, axis)) <= 2e-6


@BOTH
def test_strides_and_misaligned_views(axis, kernel):
    f = grid(40, 30, 70)
    views = [f.transpose(0, 2), f[:, ::2], f[..., ::3], f[3:, 5:, 1:], f[:1].expand(40, 30, 70)]
    views += [f.flatten()[offset : offset + 9 * 10 * 67].view(9, 10, 67) for offset in range(4)]
    for given in views:
        result = finite_differences(given, axis, 0.5, kernel)
        assert result.is_contiguous()
        assert rules.relative_error(result, reference(given.double(), axis, 0.5)) <= LARGEST_ERROR


@BOTH
def test_a_number_reaches_its_neighbours_alone(axis, kernel):
    """Also over the edge of the grid, and not into the next grid."""
    f = torch.zeros(3, 70, 70, 70, device="cuda")
    f[1, 0, 0, 0] = math.inf
    place = AXES.index(axis) + 1
    line = finite_differences(f, axis, 0.5, kernel).movedim(place, -1)
    assert line[1, 0, 0].nonzero().flatten().tolist() == [1, 2, 3, 4, 66, 67, 68, 69]
    assert line.count_nonzero() == 8


@BOTH
def test_every_element_is_written(axis, kernel):
    f = grid(66, 9, 70)
    expected = finite_differences(f, axis, 0.5, kernel)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="cuda").isnan().all()
        result = finite_differences(f, axis, 0.5, kernel)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(result, expected) and not result.isnan().any()


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("shape", [(2**10, 2**10, 2**10), (3, 1021, 1031, 997)])
def test_large_grids_and_more_than_2_to_the_31_numbers(shape, axis):
    size = torch.Size(shape)
    if torch.cuda.mem_get_info()[0] < 4 * size.numel() * 4:
        pytest.skip("needs more free GPU memory")
    f = grid(*shape)
    results = [finite_differences(f, axis, 0.5, kernel) for kernel in KERNELS]
    assert torch.equal(*results)
    # A part of the last grid, whole along the axis: in float64 all of it takes too much memory.
    part = tuple(slice(None) if name == axis else slice(-5, None) for name in AXES)
    last, result = (tensor.view(-1, *shape[-3:])[-1][part] for tensor in (f, results[1]))
    assert rules.relative_error(result, reference(last.double(), axis, 0.5)) <= LARGEST_ERROR


@BOTH
def test_fifty_runs_give_the_same_bits(axis, kernel):
    rules.fifty_runs_give_the_same_bits(along(axis, kernel), [grid(33, 70, 65)])


@BOTH
def test_a_graph_replays_it_on_new_values(axis, kernel):
    rules.a_graph_replays_it_on_new_values(along(axis, kernel), [grid(9, 10, 70)], grid(9, 10, 70, seed=1))


@BOTH
def test_it_runs_on_the_current_stream(axis, kernel):
    rules.it_runs_on_the_current_stream(along(axis, kernel), [grid(64, 64, 64)], grid(64, 64, 64, seed=1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("axis", AXES)
def test_torch_compile_takes_it_whole(axis):
    rules.torch_compile_takes_it_whole(along(axis, "tiled"), [grid(9, 10, 11)], 1e-6)


@BOTH
def test_its_gradient_is_that_of_its_definition(axis, kernel):
    f, back = grid(9, 12, 70).requires_grad_(), grid(9, 12, 70, seed=1)
    (gradient,) = torch.autograd.grad(finite_differences(f, axis, 0.5, kernel), f, back)
    exact = f.detach().double().requires_grad_()
    (expected,) = torch.autograd.grad(reference(exact, axis, 0.5), exact, back.double())
    assert rules.relative_error(gradient, expected) <= LARGEST_ERROR


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_the_operation_keeps_pytorch_s_rules(dtype):
    f = grid(4, 5, 6, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.finite_differences, (f.requires_grad_(), "y", 0.5, "tiled"))
    turned = f.detach().transpose(0, 2)
    torch.library.opcheck(torch.ops.reread_kernels.finite_differences, (turned, "z", 0.5, "direct"))


def test_an_empty_batch_gives_an_empty_result():
    assert finite_differences(grid(0, 5, 5, 5), "z").shape == (0, 5, 5, 5)


def test_the_compiled_operation_refuses_what_would_read_outside():
    f = grid(4, 5, 6)
    finite_differences(f)
    compiled = torch.ops.reread_kernels_compiled.finite_differences
    with pytest.raises(RuntimeError, match="3 dimensions or more, got 2"):
        compiled(f[0], 2, 1.0, 0)
    with pytest.raises(RuntimeError, match="at least 4 points along the axis, got 3"):
        compiled(f[:3], 0, 1.0, 0)
    with pytest.raises(RuntimeError, match="no such axis or kernel, got 3 and 0"):
        compiled(f, 3, 1.0, 0)
    with pytest.raises(RuntimeError, match="dtype must be float32"):
        compiled(f.double(), 2, 1.0, 0)
