"""Swish's kernels on a GPU, in strict mode: the reference can not stand in for them."""

import pytest
import torch

from cuda_ext.swish import DTYPES, HALF, reference, reference_backward, reference_backward_beta, swish
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
LARGEST_ERROR = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
BETAS = ["none", "scalar", "channel"]
# One element, less than a pack, odd channels, rows of many blocks; planes of one channel from 2 elements to 10^6, of
# whole packs and not, one of which is longer than a block's share.
SHAPES = [
    (1, 1),
    (3, 1),
    (2, 7),
    (1001, 7),
    (999, 1024),
    (513, 521),
    (3, 5000),
    (70_000, 2),
    (65, 36, 8, 8),
    (33, 37, 7, 7),
    (5, 6, 2, 1),
    (4, 9, 1, 3),
    (2, 1500, 3, 3),
    (65, 64, 31, 33),
    (5, 16, 56, 56),
    (3, 3, 111, 113),
    (2, 2, 1000, 1001),
    (3, 4, 5, 6, 7),
]


def inputs_of(shape, kind, dtype=torch.float32, beta_dtype=None):
    """x, beta of ``kind`` or None, and a gradient."""
    generator = torch.Generator("cuda").manual_seed(0)
    x, gradient = (torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(2))
    size = {"none": None, "scalar": (), "channel": shape[1:2]}[kind]
    if size is None:
        return x, None, gradient
    return x, torch.randn(size, generator=generator, device="cuda").to(beta_dtype or dtype), gradient


def both_passes(x, beta, gradient):
    """The result, the gradient of x and, where there is a beta, of beta; each kernel's."""
    operations = torch.ops.reread_kernels
    results = [operations.swish(x, beta), operations.swish_backward(gradient, x, beta)]
    if beta is not None:
        results += operations.swish_backward_beta(gradient, x, beta)
    return tuple(results)


def exactly(x, beta, gradient):
    """The same from the reference, in float64."""
    x, gradient = x.double(), gradient.double()
    if beta is None:
        return reference(x, None), reference_backward(gradient, x, None)
    beta = beta.double()
    gradients = reference_backward_beta(gradient, x, beta)
    return reference(x, beta), gradients[0], *gradients


def assert_close(results, exact, dtype, elements):
    """By relative norm. A sum that cancels is as wrong as its terms, so beta's gradient has their spread to be near."""
    for a, b in zip(results[:3], exact[:3], strict=True):
        assert rules.relative_error(a, b) <= LARGEST_ERROR[dtype]
    for a, b in zip(results[3:], exact[3:], strict=True):
        assert a.shape == b.shape
        assert (a.double() - b).norm() <= LARGEST_ERROR[dtype] * (b.norm() + elements**0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", BETAS)
def test_the_error_against_float64_is_rounding_on_every_shape_and_memory_order(kind, dtype):
    for shape in SHAPES:
        x, beta, gradient = inputs_of(shape, kind, dtype)
        backwards = tuple(reversed(range(len(shape))))
        orders = [x, x.permute(backwards).contiguous().permute(backwards)]
        if len(shape) == 4:
            orders.append(x.contiguous(memory_format=torch.channels_last))
        for ordered in orders:
            results = both_passes(ordered, beta, gradient)
            assert_close(results, exactly(ordered, beta, gradient), dtype, x.numel())
            assert all(a.stride() == torch.empty_like(ordered).stride() for a in results[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", BETAS)
def test_gaps_overlaps_and_misaligned_views(kind, dtype):
    x, beta, gradient = inputs_of((40, 12, 6, 10), kind, dtype)
    for offset in (1, 3):
        view = torch.empty(x.numel() + offset, device="cuda", dtype=dtype)[offset:].view(x.shape).copy_(x)
        assert_close(both_passes(view, beta, gradient), exactly(x, beta, gradient), dtype, x.numel())
        assert_close(both_passes(x, beta, view), exactly(x, beta, x), dtype, x.numel())
    views = [(x[:, :, ::2], gradient[:, :, ::2]), (x[:1].expand(x.shape), gradient), (x, gradient[:1].expand(x.shape))]
    for a, b in views:
        assert_close(both_passes(a, beta, b), exactly(a, beta, b), dtype, a.numel())
    if kind == "channel":
        every_other = torch.stack([beta, beta + 1], 1)[:, 0]
        assert_close(both_passes(x, every_other, gradient), exactly(x, beta, gradient), dtype, x.numel())


@pytest.mark.parametrize("kind", ["scalar", "channel"])
@pytest.mark.parametrize("dtype", HALF)
def test_beta_may_stay_in_float32_with_autocast_and_without(dtype, kind):
    x, beta, gradient = inputs_of((64, 24, 5, 5), kind, dtype, torch.float32)
    for on in (False, True):
        with torch.autocast("cuda", dtype=dtype, enabled=on):
            result = swish(x.requires_grad_(), beta.requires_grad_())
        results = (result.detach(), *torch.autograd.grad(result, (x, beta), gradient))
        assert [tensor.dtype for tensor in results] == [dtype, dtype, torch.float32]
        exact = exactly(x.detach(), beta.detach(), gradient)
        assert_close((*results[:2], results[1], results[2]), exact, dtype, x.numel())
        assert rules.relative_error(results[2], exact[3]) <= 1e-5


def test_autocast_leaves_float32_alone():
    x, beta, _ = inputs_of((8, 24), "channel")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert swish(x, beta).dtype == torch.float32


def test_what_is_not_finite_and_beta_of_any_sign_come_as_in_the_reference():
    x = torch.tensor([-torch.inf, -1e30, -1e4, -90.0, -0.0, 0.0, 90.0, 1e4, 1e30, torch.inf, torch.nan], device="cuda")
    gradient = torch.ones_like(x)
    for beta in (None, *(torch.tensor(value, device="cuda") for value in (0.0, -1.0, 2.5, 1e6))):
        results = torch.ops.reread_kernels.swish(x, beta), torch.ops.reread_kernels.swish_backward(gradient, x, beta)
        expected = reference(x, beta), reference_backward(gradient, x, beta)
        torch.testing.assert_close(results, expected, rtol=1e-6, atol=1e-30, equal_nan=True)


@pytest.mark.parametrize("kind", ["scalar", "channel"])
@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (2, 5, 0, 4)])
def test_nothing_in_gives_nothing_out_and_a_beta_gradient_of_zero(shape, kind):
    x, beta, gradient = inputs_of(shape, kind)
    result, gradient_x, again, gradient_beta = both_passes(x, beta, gradient)
    assert result.shape == gradient_x.shape == again.shape == shape
    assert torch.equal(gradient_beta, torch.zeros_like(beta))


@pytest.mark.parametrize("shape", [(2**31 // 1000 + 1, 1000), (3, 5, 2**31 // 15 + 7)])
def test_more_than_2_to_the_31_elements(shape):
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of free GPU memory")
    x = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    gradient = torch.ones_like(x)
    beta = torch.rand(shape[1], device="cuda").add_(0.5)
    for given_beta in (beta, beta[0].clone()):
        result = swish(x, given_beta)
        gradient_x, gradient_beta = torch.ops.reread_kernels.swish_backward_beta(gradient, x, given_beta)
        for corner in (slice(None, 1), slice(-1, None)):
            places = (corner, slice(None), slice(None, 1000) if corner.stop else slice(-1000, None))[: x.ndim]
            few, of_few = x[places], gradient[places]
            parts = (result[places], gradient_x[places])
            assert_close(parts, exactly(few, given_beta, of_few)[:2], x.dtype, few.numel())
        exact = torch.zeros_like(given_beta, dtype=torch.float64)
        for piece in x.chunk(64, dim=0 if x.ndim == 2 else 2):
            exact += reference_backward_beta(torch.ones_like(piece).float(), piece.float(), given_beta)[1]
        assert rules.relative_error(gradient_beta, exact) <= 1e-5


@pytest.mark.parametrize("kind", BETAS)
@pytest.mark.parametrize("shape", [(1003, 257), (17, 33, 30, 30), (9, 5, 70, 70)])
def test_fifty_runs_give_the_same_bits(shape, kind):
    rules.fifty_runs_give_the_same_bits(both_passes, inputs_of(shape, kind))


def with_gradients(shape, kind, dtype=torch.float32):
    x, beta, gradient = inputs_of(shape, kind, dtype)
    return x.requires_grad_(), beta.requires_grad_(), gradient


@pytest.mark.parametrize("kind", ["scalar", "channel"])
def test_a_cuda_graph_replays_it_on_new_values(kind):
    inputs = inputs_of((500, 130), kind)
    rules.a_graph_replays_it_on_new_values(both_passes, inputs, torch.randn(500, 130, device="cuda"))


@pytest.mark.parametrize("kind", ["scalar", "channel"])
def test_it_runs_on_the_current_stream(kind):
    inputs = inputs_of((500, 130), kind)
    rules.it_runs_on_the_current_stream(both_passes, inputs, torch.randn(500, 130, device="cuda"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", BETAS)
def test_torch_compile_takes_it_whole_with_its_gradients(kind):
    x, beta, gradient = inputs_of((6, 12, 9, 9), kind)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    given = (x,) if beta is None else (x, beta.requires_grad_())
    rules.torch_compile_takes_it_whole(swish, given, 1e-6)
    compiled = torch.compile(lambda *given: swish(*given).sin(), fullgraph=True)
    gradients = torch.autograd.grad(compiled(*given), given, gradient)
    expected = torch.autograd.grad(swish(*given).sin(), given, gradient)
    assert rules.relative_error(gradients, expected) <= 1e-5


@pytest.mark.parametrize(("kind", "dtype"), list(zip(["scalar", "none", "channel", "channel"], DTYPES, strict=True)))
def test_the_operations_keep_pytorch_s_rules(kind, dtype):
    x, beta, gradient = inputs_of((2, 5, 3, 2), kind, dtype)
    x = x.contiguous(memory_format=torch.channels_last).requires_grad_()
    beta, gradient = beta if beta is None else beta.requires_grad_(), gradient.requires_grad_()
    torch.library.opcheck(torch.ops.reread_kernels.swish, (x, beta))
    torch.library.opcheck(torch.ops.reread_kernels.swish_backward, (gradient, x, beta))
    if beta is not None:
        torch.library.opcheck(torch.ops.reread_kernels.swish_backward_beta, (gradient, x, beta))


@pytest.mark.parametrize("kind", ["scalar", "channel"])
def test_gradients_match_finite_differences(kind):
    x, beta, _ = with_gradients((2, 3, 4), kind, torch.float64)
    for inputs in [(x, beta), (x,), (x.detach(), beta)]:
        assert torch.autograd.gradcheck(swish, inputs)
        assert torch.autograd.gradgradcheck(swish, inputs)


def test_what_is_wrong_is_refused_by_the_face_and_by_the_compiled_operation():
    x, beta, gradient = inputs_of((4, 6), "channel")
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        swish(x, beta.cpu())
    compiled = torch.ops.reread_kernels_compiled
    with pytest.raises(RuntimeError, match="a scalar or one a channel"):
        compiled.swish(x, beta[:5])
    with pytest.raises(RuntimeError, match="beta must have x's dtype"):
        compiled.swish(x, beta.double())
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled.swish(x.int(), None)
    with pytest.raises(RuntimeError, match="one GPU"):
        compiled.swish(x, beta.cpu())
    with pytest.raises(RuntimeError, match="gradient must have x's"):
        compiled.swish_backward(gradient[:3], x, beta)
    with pytest.raises(RuntimeError, match="gradient must have x's"):
        compiled.swish_backward_beta(gradient.double(), x, beta)
