"""Vector addition's kernel on a GPU, in strict mode: its reference can not stand in for it."""

import pytest
import torch

from cuda_ext import library
from cuda_ext.vector_add import DTYPES, vector_add

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Rounding to half of the last place, with some room.
LARGEST_ERROR = {torch.float64: 0.0, torch.float32: 1e-7, torch.float16: 1e-3, torch.bfloat16: 1e-2}


def pair(*shape, dtype=torch.float32):
    generator = torch.Generator("cuda").manual_seed(0)
    return tuple(torch.randn(shape, generator=generator, device="cuda").to(dtype) for _ in range(2))


def test_the_library_is_what_runs():
    assert library.kernels(torch.device("cuda", 0)).startswith("extension ")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 255, 1025, 4099, 2**20 + 3])
def test_the_error_against_float64_is_rounding(dtype, size):
    x, y = pair(size, dtype=dtype)
    result, exact = vector_add(x, y), x.double() + y.double()
    assert torch.equal(result, x + y)
    assert (result.double() - exact).norm() <= LARGEST_ERROR[dtype] * exact.norm()


@pytest.mark.parametrize("dtype", DTYPES)
def test_strides_and_misaligned_views(dtype):
    x, y = pair(130, 67, dtype=dtype)
    flat_x, flat_y = x.flatten(), y.flatten()
    views = [(x.t(), y.t()), (x[:, ::3], y[:, ::3]), (x, y.t().contiguous().t()), (x[:1].expand(130, 67), y)]
    views += [(flat_x[i:4000], flat_y[j : 4000 - i + j]) for i in range(4) for j in range(4)]
    for a, b in views:
        result = vector_add(a, b)
        assert torch.equal(result, a + b)
        assert result.is_contiguous()


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 24 * 2**30:
        pytest.skip("needs 24 GiB of free GPU memory")
    size = 2**31 + 11
    x = torch.randint(-1000, 1000, (size,), dtype=torch.float16, device="cuda")
    y = torch.randint(-1000, 1000, (size,), dtype=torch.float16, device="cuda")
    assert torch.equal(vector_add(x, y), x + y)
    # Not on 16 bytes: the other kernel.
    assert torch.equal(vector_add(x[1:], y[1:]), x[1:] + y[1:])


def test_fifty_runs_give_the_same_bits_in_deterministic_mode():
    x, y = pair(100_003)
    torch.use_deterministic_algorithms(True)
    try:
        first = vector_add(x, y)
        assert all(torch.equal(vector_add(x, y), first) for _ in range(50))
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_cuda_graph_replays_it_on_new_values():
    x, y = pair(5000)
    vector_add(x, y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = vector_add(x, y)
    x.copy_(torch.randn_like(x))
    graph.replay()
    assert torch.equal(result, x + y)


def test_it_runs_on_the_current_stream():
    x, y = pair(2**20)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # If the sum ran on the default stream it would not wait for this, and would add the old values.
        torch.cuda._sleep(50_000_000)
        x.fill_(1.0)
        y.fill_(2.0)
        result = vector_add(x, y)
    side.synchronize()
    assert torch.equal(result, torch.full_like(x, 3.0))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole_with_its_gradients():
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: vector_add(x * 2, y).sin(), fullgraph=True)
    for size in (33, 64):
        x, y = (tensor.requires_grad_() for tensor in pair(size))
        result = compiled(x, y)
        expected = (x * 2 + y).sin()
        torch.testing.assert_close(result, expected)
        gradients = torch.autograd.grad(result.sum(), (x, y))
        torch.testing.assert_close(gradients, torch.autograd.grad(expected.sum(), (x, y)))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_under_autocast():
    torch._dynamo.reset()
    x, y = pair(40)

    @torch.compile(fullgraph=True)
    def run(x, y):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return vector_add(x, y)

    assert run(x, y.half()).dtype == torch.float32
    assert torch.equal(run(x, y.half()), x + y.half())


def test_autocast_promotes_and_gradients_keep_their_dtype():
    x, y = pair(500)
    narrow = y.half().requires_grad_()
    with torch.autocast("cuda", dtype=torch.float16):
        result = vector_add(x.requires_grad_(), narrow)
    assert torch.equal(result, x + narrow)
    result.sum().backward()
    assert (x.grad.dtype, narrow.grad.dtype) == (torch.float32, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_operation_keeps_pytorch_s_rules(dtype):
    x, y = pair(4, 5, dtype=dtype)
    torch.library.opcheck(torch.ops.reread_kernels.vector_add, (x.requires_grad_(), y.requires_grad_()))
    torch.library.opcheck(torch.ops.reread_kernels.vector_add, (x.detach().t(), y.detach().t()))


def test_gradients_match_finite_differences():
    x, y = (tensor.requires_grad_() for tensor in pair(3, 4, dtype=torch.float64))
    assert torch.autograd.gradcheck(vector_add, (x, y))
    assert torch.autograd.gradgradcheck(vector_add, (x, y))


def test_two_devices_are_refused_and_so_is_the_compiled_operation_called_wrongly():
    x, y = pair(4)
    with pytest.raises(ValueError, match="one device, got cuda:0 and cpu"):
        vector_add(x, y.cpu())
    compiled = torch.ops.reread_kernels_compiled.vector_add
    with pytest.raises(RuntimeError, match="one shape, got 4 and 3 elements"):
        compiled(x, y[:3])
    with pytest.raises(RuntimeError, match="one dtype"):
        compiled(x, y.double())
    with pytest.raises(RuntimeError, match="dtype must be"):
        compiled(x.int(), y.int())
