"""Maximum pooling's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.max_pool2d import DTYPES, max_pool2d
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
both_windows = pytest.mark.parametrize("window", [2, 3])
# Nothing, one window, odd sides, no window of 2 x 2 at all, channels that fill packs of 16 bytes and such that do not,
# and more windows in a row than a block has threads.
SHAPES = [
    (0, 8, 4, 4), (1, 1, 2, 2), (3, 8, 5, 7), (3, 7, 5, 7), (2, 64, 31, 31), (2, 3, 1, 9), (2, 16, 4, 301),
    (5, 12, 6, 6), (2, 8, 1, 1), (2, 8, 18, 1), (2, 5, 17, 2),
]  # fmt: skip


def images(*shape, dtype=torch.float32, seed=0):
    """Whole numbers in part, so that windows have equal maxima."""
    x = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    return torch.where(x > 0, x.round(), x).to(dtype).contiguous(memory_format=torch.channels_last)


def with_gradient(x, window):
    x = x.detach().requires_grad_()
    y = max_pool2d(x, window)
    above = images(*y.shape, dtype=y.dtype, seed=1)
    return y.detach(), torch.autograd.grad(y, x, above)[0]


def pooled(x, window):
    return functional.max_pool2d(x, window, stride=2, padding=window - 2)


def of_pytorch(x, window):
    """On the CPU: PyTorch's gradient on a GPU adds up by atomics. Half precision is added up in float32."""
    shape = (*x.shape[:2], *((side + window) // 2 - 1 for side in x.shape[2:]))
    if 0 in shape:
        return x.new_empty(shape), torch.zeros_like(x)
    wide = torch.promote_types(x.dtype, torch.float32)
    given = x.detach().cpu().to(wide).requires_grad_()
    y = pooled(given, window)
    above = images(*y.shape, dtype=x.dtype, seed=1).cpu().to(wide)
    (gradient,) = torch.autograd.grad(y, given, above)
    return y.detach().to(x.dtype).cuda(), gradient.to(x.dtype).cuda()


@both_windows
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_maxima_and_gradients_are_pytorch_s(shape, dtype, window):
    x = images(*shape, dtype=dtype)
    for a, b in zip(with_gradient(x, window), of_pytorch(x, window), strict=True):
        assert a.dtype == dtype and torch.equal(a, b)


@both_windows
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_misaligned_views(dtype, window):
    x = images(4, 16, 12, 10, dtype=dtype)
    flat = x.movedim(1, -1).flatten()
    views = [x.contiguous(), x[:, ::2], x[:, :, 1:], x[..., ::3], x[:1].expand(4, 16, 12, 10), x.transpose(2, 3)]
    views += [flat[i : i + 3840].view(4, 12, 10, 8).movedim(-1, 1) for i in range(1, 4)]
    for given in views:
        for a, b in zip(with_gradient(given, window), of_pytorch(given, window), strict=True):
            assert torch.equal(a, b)


@both_windows
@pytest.mark.parametrize("channels", [5, 8])
# Of several NaNs PyTorch itself, which runs float64, chooses another on a GPU than on a CPU.
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_a_nan_is_larger_than_any_number_and_gets_the_gradient(dtype, channels, window):
    x = images(3, channels, 11, 12, dtype=dtype)
    x[0, :, 1, 2] = x[1, 3, 0] = float("nan")
    x[1, :, 4:] = x[2, 0] = -float("inf")
    drawn = torch.rand(x[2].shape, generator=torch.Generator("cuda").manual_seed(2), device="cuda")
    x[2] = x[2].masked_fill(drawn < 0.1, float("nan")).masked_fill(drawn > 0.6, -float("inf"))
    for a, b in zip(with_gradient(x, window), of_pytorch(x, window), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


@both_windows
def test_every_element_of_the_gradient_is_written(window):
    x = images(3, 8, 7, 5)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="cuda").isnan().all()
        _, gradient = with_gradient(x, window)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(gradient, of_pytorch(x, window)[1])


@both_windows
def test_more_than_2_to_the_31_elements(window):
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    x = torch.empty(2**21 + 3, 32, 32, 1, dtype=torch.float16, device="cuda").random_(-1000, 1000).movedim(-1, 1)
    assert x.numel() > 2**31
    y = max_pool2d(x.requires_grad_(), window)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    # By parts: a whole comparison takes memory of its own.
    for part, maxima, of_part in zip(*(tensor.detach().split(2**18) for tensor in (x, y, gradient)), strict=True):
        expected = pooled(part.requires_grad_(), window)
        assert torch.equal(maxima, expected)
        # Counts of windows: exact, in whatever order they are added up.
        assert torch.equal(of_part, torch.autograd.grad(expected, part, torch.ones_like(expected))[0])


@both_windows
def test_more_rows_of_windows_than_blocks(window):
    x = images(2**20 + 5, 1, 2, 2, dtype=torch.bfloat16)
    y, gradient = with_gradient(x, window)
    assert torch.equal(y, x.amax((2, 3), keepdim=True))
    assert torch.equal(gradient.sum((2, 3), keepdim=True), images(*y.shape, dtype=y.dtype, seed=1))


@both_windows
@pytest.mark.parametrize("dtype", DTYPES)
def test_fifty_runs_give_the_same_bits(dtype, window):
    x = images(20, 24, 31, 31, dtype=dtype)
    rules.fifty_runs_give_the_same_bits(lambda x: with_gradient(x, window), [x])


@both_windows
def test_a_graph_replays_it_on_new_values(window):
    changed = images(4, 8, 9, 9, seed=2)
    rules.a_graph_replays_it_on_new_values(lambda x: max_pool2d(x, window), [images(4, 8, 9, 9)], changed)


@both_windows
def test_it_runs_on_the_current_stream(window):
    changed = images(40, 8, 90, 90, seed=2)
    rules.it_runs_on_the_current_stream(lambda x: max_pool2d(x, window), [images(40, 8, 90, 90)], changed)


@both_windows
@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole(window):
    rules.torch_compile_takes_it_whole(lambda x: max_pool2d(x, window), [images(4, 8, 9, 9)], 1e-6)


@both_windows
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operations_keep_pytorch_s_rules(dtype, window):
    x = images(2, 8, 5, 4, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.max_pool2d, (x.requires_grad_(), window))
    y, index = torch.ops.reread_kernels.max_pool2d(x.detach(), window)
    torch.library.opcheck(torch.ops.reread_kernels.max_pool2d_backward, (y.requires_grad_(), index, 5, 4, window))


@both_windows
def test_gradients_of_both_orders_match_finite_differences(window):
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(max_pool2d, (x, window))
    assert torch.autograd.gradgradcheck(max_pool2d, (x, window))


def test_autocast_changes_nothing():
    x = images(2, 8, 4, 4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert max_pool2d(x).dtype == torch.float32


def test_the_compiled_operations_refuse_what_would_read_outside():
    x = images(2, 8, 4, 4).movedim(1, -1)
    max_pool2d(x.movedim(-1, 1))
    compiled = torch.ops.reread_kernels_compiled
    with pytest.raises(RuntimeError, match="contiguous, on a GPU"):
        compiled.max_pool2d(x[0], 2)
    with pytest.raises(RuntimeError, match="contiguous, on a GPU"):
        compiled.max_pool2d(x.movedim(-1, 1), 2)
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled.max_pool2d(x.int(), 2)
    with pytest.raises(RuntimeError, match="window must be 2 or 3"):
        compiled.max_pool2d(x, 4)
    y, index = compiled.max_pool2d(x, 2)
    for window in (2, 3):
        with pytest.raises(RuntimeError, match="of the windows of 6 x 4"):
            compiled.max_pool2d_backward(y, index, 6, 4, window)
    with pytest.raises(RuntimeError, match="of the windows of 5 x 4"):
        compiled.max_pool2d_backward(y, index, 5, 4, 3)
    with pytest.raises(RuntimeError, match="window must be 2 or 3"):
        compiled.max_pool2d_backward(y, index, 4, 4, 4)
    with pytest.raises(RuntimeError, match="index of bytes"):
        compiled.max_pool2d_backward(y, index.int(), 4, 4, 2)
