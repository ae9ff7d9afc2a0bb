"""The transpose's kernels on a GPU, in strict mode: their reference can not stand in for them."""

import pytest
import torch

from cuda_ext.transpose import DTYPES, KERNELS, transpose
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Nothing, one number, one row, one column, whole tiles, tiles that stick out on one side or on both.
SHAPES = [
    (0, 5), (5, 0), (1, 1), (1, 1000), (1000, 1), (32, 32), (64, 96), (31, 33), (33, 32), (32, 33), (7, 5), (513, 1027),
]  # fmt: skip


def matrix(*shape, dtype=torch.float32, seed=0):
    return torch.randn(shape, generator=torch.Generator("cuda").manual_seed(seed), device="cuda").to(dtype)


def by(kernel):
    return lambda x: transpose(x, kernel)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_transpose(shape, dtype, kernel):
    x = matrix(*shape, dtype=dtype)
    result = transpose(x, kernel)
    assert result.dtype == dtype and result.is_contiguous()
    assert torch.equal(result, x.t())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_misaligned_views(dtype, kernel):
    x = matrix(130, 67, dtype=dtype)
    views = [x.t(), x[:, ::3], x[3:, 5:], x[:1].expand(130, 67), x[:, :1].expand(130, 67)]
    views += [x.flatten()[offset : offset + 4095].view(63, 65) for offset in range(4)]
    for given in views:
        result = transpose(given, kernel)
        assert torch.equal(result, given.t()) and result.is_contiguous()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("dtype", "word"), [(torch.float32, torch.int32), (torch.bfloat16, torch.int16)])
def test_every_bit_is_moved(dtype, word, kernel):
    """NaN with their payloads, infinities and subnormal numbers among them."""
    bounds = torch.iinfo(word)
    bits = torch.randint(bounds.min, bounds.max, (301, 123), device="cuda", dtype=word)
    assert torch.equal(transpose(bits.view(dtype), kernel).view(word), bits.t())


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_element_is_written(kernel):
    x = matrix(45, 103)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(3, device="cuda").isnan().all()
        result = transpose(x, kernel)
    finally:
        torch.use_deterministic_algorithms(False)
    assert torch.equal(result, x.t())


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 16 * 2**30:
        pytest.skip("needs 16 GiB of free GPU memory")
    x = torch.empty(46_349, 46_351, dtype=torch.float16, device="cuda").random_(-1000, 1000)
    assert x.numel() > 2**31
    for kernel in KERNELS:
        result = transpose(x, kernel)
        # By parts: a whole comparison takes memory of its own.
        parts = zip(result.split(4000), x.split(4000, dim=1), strict=True)
        assert all(torch.equal(rows, columns.t()) for rows, columns in parts)
        del result


@pytest.mark.parametrize("shape", [(1, 2**26 + 1), (2**26 + 1, 1)])
def test_a_row_of_more_tiles_than_a_grid_s_y_has(shape):
    x = matrix(*shape, dtype=torch.float16)
    for kernel in KERNELS:
        assert torch.equal(transpose(x, kernel), x.t())


@pytest.mark.parametrize("kernel", KERNELS)
def test_fifty_runs_give_the_same_bits(kernel):
    rules.fifty_runs_give_the_same_bits(by(kernel), [matrix(333, 517)])


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_graph_replays_it_on_new_values(kernel):
    rules.a_graph_replays_it_on_new_values(by(kernel), [matrix(100, 70)], matrix(100, 70, seed=1))


@pytest.mark.parametrize("kernel", KERNELS)
def test_it_runs_on_the_current_stream(kernel):
    rules.it_runs_on_the_current_stream(by(kernel), [matrix(1000, 700)], matrix(1000, 700, seed=1))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    rules.torch_compile_takes_it_whole(transpose, [matrix(33, 64)], 1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
def test_its_gradient_is_the_transpose_of_the_gradient(kernel):
    x, back = matrix(33, 65).requires_grad_(), matrix(65, 33, seed=1)
    (gradient,) = torch.autograd.grad(transpose(x, kernel), x, back)
    assert torch.equal(gradient, back.t())


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operation_keeps_pytorch_s_rules(dtype):
    x = matrix(4, 5, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.transpose, (x.requires_grad_(), "padded"))
    torch.library.opcheck(torch.ops.reread_kernels.transpose, (x.detach().t(), "tiled"))


def test_gradients_match_finite_differences():
    assert torch.autograd.gradgradcheck(transpose, (matrix(3, 4, dtype=torch.float64).requires_grad_(),))


def test_autocast_changes_nothing():
    x = matrix(30, 40)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert torch.equal(transpose(x), x.t())


def test_the_compiled_operation_refuses_what_would_read_outside():
    x = matrix(4, 5)
    transpose(x)
    compiled = torch.ops.reread_kernels_compiled.transpose
    with pytest.raises(RuntimeError, match="must be a matrix on a GPU, got 3 dimensions"):
        compiled(x[None], 2)
    with pytest.raises(RuntimeError, match="no such kernel, got 3"):
        compiled(x, 3)
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled(x.int(), 2)
