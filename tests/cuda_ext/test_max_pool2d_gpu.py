"""Maximum pooling's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch
from torch.nn import functional

from cuda_ext.max_pool2d import DTYPES, max_pool2d
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Nothing, one window, odd sides, no window at all, channels that fill packs of 16 bytes and such that do not, and more
# windows in a row than a block has threads.
SHAPES = [
    (0, 8, 4, 4), (1, 1, 2, 2), (3, 8, 5, 7), (3, 7, 5, 7), (2, 64, 31, 31), (2, 3, 1, 9), (2, 16, 4, 301),
    (5, 12, 6, 6),
]  # fmt: skip


def images(*shape, dtype=torch.float32, seed=0):
    """Whole numbers in part, so that windows have equal maxima."""
    x = torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda")
    return torch.where(x > 0, x.round(), x).to(dtype).contiguous(memory_format=torch.channels_last)


def with_gradient(function, x):
    x = x.detach().requires_grad_()
    y = function(x)
    above = images(*y.shape, dtype=y.dtype, seed=1)
    return y.detach(), torch.autograd.grad(y, x, above)[0]


def of_pytorch(x):
    """On the CPU: PyTorch's gradient on a GPU adds up by atomics."""
    if min(x.shape[2:]) < 2 or x.numel() == 0:
        return x.new_empty(*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2), torch.zeros_like(x)
    x = x.detach().cpu().requires_grad_()
    y = functional.max_pool2d(x, 2)
    above = images(*y.shape, dtype=y.dtype, seed=1).cpu()
    return y.detach().cuda(), torch.autograd.grad(y, x, above)[0].cuda()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_maxima_and_gradients_are_pytorch_s(shape, dtype):
    x = images(*shape, dtype=dtype)
    for a, b in zip(with_gradient(max_pool2d, x), of_pytorch(x), strict=True):
        assert a.dtype == dtype and torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_misaligned_views(dtype):
    x = images(4, 16, 12, 10, dtype=dtype)
    flat = x.movedim(1, -1).flatten()
    views = [x.contiguous(), x[:, ::2], x[:, :, 1:], x[..., ::3], x[:1].expand(4, 16, 12, 10), x.transpose(2, 3)]
    views += [flat[i : i + 3840].view(4, 12, 10, 8).movedim(-1, 1) for i in range(1, 4)]
    for given in views:
        for a, b in zip(with_gradient(max_pool2d, given), of_pytorch(given), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_nan_is_larger_than_any_number_and_gets_the_gradient(dtype):
    x = images(2, 8, 6, 6, dtype=dtype)
    x[0, :, 1, 2] = x[1, 3, 0] = float("nan")
    x[1, :, 4:] = -float("inf")
    for a, b in zip(with_gradient(max_pool2d, x), of_pytorch(x), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_every_element_of_the_gradient_is_written():
    x = images(3, 8, 7, 5)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="cuda").isnan().all()
        _, gradient = with_gradient(max_pool2d, x)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(gradient, of_pytorch(x)[1])


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    x = torch.empty(2**21 + 3, 32, 32, 1, dtype=torch.float16, device="cuda").random_(-1000, 1000).movedim(-1, 1)
    assert x.numel() > 2**31
    y, gradient = with_gradient(max_pool2d, x)
    # By parts: a whole comparison takes memory of its own.
    for part, expected, of_part in zip(x.split(2**18), y.split(2**18), gradient.split(2**18), strict=True):
        windows = part.unflatten(2, (16, 2)).unflatten(4, (16, 2))
        assert torch.equal(windows.amax((3, 5)), expected)
        assert int((of_part.unflatten(2, (16, 2)).unflatten(4, (16, 2)) != 0).sum((3, 5)).max()) <= 1


def test_more_rows_of_windows_than_blocks():
    x = images(2**20 + 5, 1, 2, 2, dtype=torch.bfloat16)
    y, gradient = with_gradient(max_pool2d, x)
    assert torch.equal(y, x.amax((2, 3), keepdim=True))
    assert torch.equal(gradient.sum((2, 3), keepdim=True), images(*y.shape, dtype=y.dtype, seed=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fifty_runs_give_the_same_bits(dtype):
    x = images(20, 24, 31, 31, dtype=dtype)
    rules.fifty_runs_give_the_same_bits(lambda x: with_gradient(max_pool2d, x), [x])


def test_a_graph_replays_it_on_new_values():
    rules.a_graph_replays_it_on_new_values(max_pool2d, [images(4, 8, 9, 9)], images(4, 8, 9, 9, seed=2))


def test_it_runs_on_the_current_stream():
    rules.it_runs_on_the_current_stream(max_pool2d, [images(40, 8, 90, 90)], images(40, 8, 90, 90, seed=2))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    rules.torch_compile_takes_it_whole(max_pool2d, [images(4, 8, 9, 9)], 1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operations_keep_pytorch_s_rules(dtype):
    x = images(2, 8, 5, 4, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.max_pool2d, (x.requires_grad_(),))
    y, index = torch.ops.reread_kernels.max_pool2d(x.detach())
    torch.library.opcheck(torch.ops.reread_kernels.max_pool2d_backward, (y.requires_grad_(), index, 5, 4))


def test_gradients_of_both_orders_match_finite_differences():
    x = torch.randn(2, 3, 5, 4, dtype=torch.float64, device="cuda", requires_grad=True)
    assert torch.autograd.gradcheck(max_pool2d, x)
    assert torch.autograd.gradgradcheck(max_pool2d, x)


def test_autocast_changes_nothing():
    x = images(2, 8, 4, 4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert max_pool2d(x).dtype == torch.float32


def test_the_compiled_operations_refuse_what_would_read_outside():
    x = images(2, 8, 4, 4).movedim(1, -1)
    max_pool2d(x.movedim(-1, 1))
    compiled = torch.ops.reread_kernels_compiled
    with pytest.raises(RuntimeError, match="contiguous, on a GPU"):
        compiled.max_pool2d(x[0])
    with pytest.raises(RuntimeError, match="contiguous, on a GPU"):
        compiled.max_pool2d(x.movedim(-1, 1))
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled.max_pool2d(x.int())
    y, index = compiled.max_pool2d(x)
    with pytest.raises(RuntimeError, match="of the windows of 6 x 4"):
        compiled.max_pool2d_backward(y, index, 6, 4)
    with pytest.raises(RuntimeError, match="index of bytes"):
        compiled.max_pool2d_backward(y, index.int(), 4, 4)
