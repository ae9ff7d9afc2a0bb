"""Each operation under torch.compile, whole, and torch.export: one node of the graph, traced with fake tensors."""

import pytest
import torch
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from cuda_ext.attention_pooling import attention_pooling, attention_pooling_ragged
from cuda_ext.batch_norm_activation import batch_norm_activation
from cuda_ext.conv2d import conv2d
from cuda_ext.cross_entropy import cross_entropy
from cuda_ext.dense_block import Halves, dense_block
from cuda_ext.embedding import embedding
from cuda_ext.finite_differences import finite_differences
from cuda_ext.gru import gru, gru_ragged
from cuda_ext.max_pool2d import max_pool2d
from cuda_ext.patch_convolution import patch_convolution
from cuda_ext.swish import swish
from cuda_ext.transpose import transpose
from cuda_ext.vector_add import vector_add

pytestmark = pytest.mark.filterwarnings("ignore::cuda_ext.library.ReferenceWarning")


def parameters(inputs=3, units=4):
    return [*nn.GRU(inputs, units).parameters()]


def norm(x, weight, bias):
    mean, variance = torch.zeros(3), torch.ones(3)
    return batch_norm_activation(x, weight, bias, mean, variance, training=True, activation="swish")


def block(x, *of):
    zeros, ones = ([function(weight) for weight in of[:2]] for function in (torch.zeros_like, torch.ones_like))
    halves = Halves(list(of[:2]), list(of[2:4]), None, list(of[4:]), zeros, ones)
    return dense_block(x, halves, training=torch.is_grad_enabled())[0]


IMAGES, FILTERS = torch.arange(24.0).view(2, 1, 3, 4), torch.arange(32.0).view(8, 1, 2, 2)
OFFSETS, LENGTHS = torch.tensor([0, 4, 6]), torch.tensor([2, 3])
TOKENS, LABELS = torch.tensor([[0, 2], [4, 2]]), torch.tensor([3, 0, 1])
# name: a function of float tensors, their shapes, and its operation in the graph.
CASES = {
    "vector_add": (vector_add, [(4,), (4,)], "vector_add"),
    "finite_differences": (lambda f: finite_differences(f, "y", 0.5), [(4, 5, 6)], "finite_differences"),
    "transpose": (transpose, [(3, 4)], "transpose"),
    "swish": (swish, [(2, 3, 4), (3,)], "swish"),
    "conv2d": (conv2d, [(2, 5, 6), (3, 3)], "conv2d"),
    "attention_pooling": (
        lambda x, *of: attention_pooling(x, LENGTHS, *of)[0],
        [(2, 3, 4), (5, 4), (5,), (5,)],
        "attention_pooling",
    ),
    "attention_pooling_ragged": (
        lambda x, *of: attention_pooling_ragged(x, OFFSETS, *of)[0],
        [(6, 4), (5, 4), (5,), (5,)],
        "attention_pooling",
    ),
    "batch_norm_activation": (norm, [(2, 3, 4, 4), (3,), (3,)], "batch_norm_activation"),
    "patch_convolution": (
        lambda bias: patch_convolution(IMAGES, FILTERS, bias, "gelu"),
        [(8,)],
        "patch_convolution",
    ),
    "max_pool2d": (max_pool2d, [(2, 3, 4, 5)], "max_pool2d"),
    "max_pool2d of windows of 3 x 3": (lambda x: max_pool2d(x, 3), [(2, 3, 4, 5)], "max_pool2d"),
    "cross_entropy": (lambda x: cross_entropy(x, LABELS, 0.1), [(3, 4)], "cross_entropy"),
    "dense_block": (block, [(2, 3, 4, 4), (3,), (8,), (3,), (8,), (8, 3, 1, 1), (4, 8, 3, 3)], "dense_block"),
    "embedding": (lambda table: embedding(table, TOKENS, padding=0), [(5, 4)], "embedding"),
    "gru": (lambda x, *of: gru(x, LENGTHS, of)[0], [(2, 3, 3), (12, 3), (12, 4), (12,), (12,)], "gru"),
    "gru_ragged": (lambda x, *of: gru_ragged(x, OFFSETS, of)[0], [(6, 3), (12, 3), (12, 4), (12,), (12,)], "gru"),
}


class Surrounded(nn.Module):
    """The operation with a change before it and one after it."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, first, *others):
        return self.function(first * 1.25, *others).sin()


def prepared(name):
    function, shapes, operation = CASES[name]
    generator = torch.Generator().manual_seed(0)
    return Surrounded(function), [torch.randn(shape, generator=generator) for shape in shapes], operation


@pytest.mark.parametrize("name", CASES)
def test_torch_compile_takes_it_whole_in_both_passes(name):
    torch._dynamo.reset()
    module, inputs, _ = prepared(name)
    inputs = [tensor.requires_grad_() for tensor in inputs]
    expected, compiled = module(*inputs), torch.compile(module, fullgraph=True, backend="aot_eager")(*inputs)
    torch.testing.assert_close(compiled, expected)
    above = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(result, inputs, above) for result in (compiled, expected)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", CASES)
def test_export_keeps_it_one_operation_for_any_batch(name):
    module, inputs, operation = prepared(name)
    # The others share their first size with another tensor, which is fixed here.
    shared = operation in ("vector_add", "attention_pooling", "cross_entropy", "gru", "patch_convolution")
    first = {} if shared else {0: torch.export.Dim.AUTO}
    others = [tuple({} for _ in inputs[1:])] if inputs[1:] else []
    with torch.no_grad():
        exported = torch.export.export(module, tuple(inputs), dynamic_shapes=(first, *others))
    names = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert names.count(f"reread_kernels.{operation}.default") == 1
    with torch.no_grad():
        assert torch.equal(exported.module()(*inputs), module(*inputs))


@pytest.mark.parametrize("window", [2, 3])
def test_one_graph_pools_images_of_any_size_in_both_passes(window):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(lambda x: max_pool2d(x, window), fullgraph=True, dynamic=True, backend=counter)
    for size in (4, 5, 7, 8):
        x = torch.randn(size, 3, size, size + 1, requires_grad=True)
        y = max_pool2d(x, window)
        expected = torch.autograd.grad(y, x, torch.ones_like(y))
        torch.testing.assert_close(torch.autograd.grad(compiled(x), x, torch.ones_like(y)), expected)
    assert counter.frame_count == 1
