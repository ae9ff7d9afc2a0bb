"""The gradient norm's kernels on a GPU, in strict mode: the reference can not stand in for them."""

import pytest
import torch

from cuda_ext.adamw.cases import HAN
from cuda_ext.gradient_norm import gradient_norm
from cuda_ext.gradient_norm.cases import LARGEST_ERROR
from tests.cuda_ext import rules

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
LISTS = [[(1,)], [(0,), (5, 3), ()], [(8192,), (8191,), (64, 300)], [(1 + i % 5,) for i in range(1300)], HAN]


def drawn(shapes, offset=0):
    torch.manual_seed(0)
    sizes = [torch.Size(shape) for shape in shapes]
    return [torch.randn(size.numel() + offset, device="cuda")[offset:].view(size) for size in sizes]


def norm(*tensors):
    return gradient_norm(tensors)


@pytest.mark.parametrize("shapes", LISTS, ids=len)
@pytest.mark.parametrize("offset", [0, 1])
def test_the_error_against_float64_is_rounding(shapes, offset):
    tensors = drawn(shapes, offset)
    exact = torch.nn.utils.get_total_norm([tensor.double() for tensor in tensors])
    assert rules.relative_error(gradient_norm(tensors), exact) <= LARGEST_ERROR


def test_no_numbers_have_a_norm_of_zero():
    assert gradient_norm([torch.empty(0, device="cuda")]).item() == 0


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_shows(value):
    tensors = drawn(LISTS[2])
    tensors[1][77] = value
    assert not gradient_norm(tensors).isfinite()


def test_fifty_runs_give_the_same_bits():
    rules.fifty_runs_give_the_same_bits(norm, drawn(HAN))


def test_a_graph_replays_it_on_new_values():
    tensors = drawn(LISTS[2])
    rules.a_graph_replays_it_on_new_values(norm, tensors, torch.rand_like(tensors[0]))


def test_it_runs_on_the_current_stream():
    tensors = drawn(LISTS[2])
    rules.it_runs_on_the_current_stream(norm, tensors, torch.rand_like(tensors[0]))


@pytest.mark.filterwarnings("ignore")
def test_torch_compile_takes_it_whole():
    rules.torch_compile_takes_it_whole(norm, drawn(LISTS[2]), LARGEST_ERROR)
