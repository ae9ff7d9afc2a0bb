"""Branches on a GPU: what runs beside a block is whole when the block ends, called and captured."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from cuda_ext.branch import aside_of_forward, branch, branch_of_forward
from cuda_ext.embedding import embedding
from cuda_ext.graphs import Graphs

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
GPU = torch.device("cuda", 0)
# Cycles of a GPU's clock: a hundredth of a second or two.
LONG = 20_000_000


def late(x):
    """2 x, after so long that whoever does not wait for it reads something else."""
    result = torch.zeros_like(x)
    torch.cuda._sleep(LONG)
    return result.add_(x, alpha=2)


def test_the_current_stream_waits_for_what_runs_beside_the_block():
    x = torch.randn(1000, device=GPU)
    with branch(GPU) as aside:
        twice = aside(lambda: late(x))
        thrice = 3 * x
    assert torch.equal(twice + thrice, 2 * x + 3 * x)


def test_what_runs_beside_the_block_waits_for_what_came_before():
    x = torch.randn(1000, device=GPU)
    before = late(x)
    with branch(GPU) as aside:
        copied = aside(before.clone)
    assert torch.equal(copied, 2 * x)


def test_a_graph_has_both_branches():
    def work(x):
        with branch(GPU) as aside:
            twice = aside(lambda: late(x))
            thrice = 3 * x
        return twice + thrice

    graphs = Graphs(work, "the work", GPU)
    for _ in range(4):
        x = torch.randn(1000, device=GPU)
        assert torch.equal(graphs(x), 2 * x + 3 * x)
    assert not graphs.failed


def test_a_graph_s_block_with_nothing_beside_it_is_captured():
    def work(x):
        with branch(GPU):
            return 3 * x

    graphs = Graphs(work, "the work", GPU)
    for _ in range(3):
        x = torch.randn(1000, device=GPU)
        assert torch.equal(graphs(x), 3 * x)
    assert not graphs.failed


def test_a_block_that_raises_leaves_streams_that_work():
    x = torch.randn(1000, device=GPU)
    results = []

    def work():
        with branch_of_forward(GPU):
            results.append(aside_of_forward()(lambda: late(x)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert torch.equal(results[0], 2 * x)
    assert aside_of_forward() is None


def train(tokens, in_branch, table, weight):
    """The gradient of a table whose rows are multiplied; its tokens are sorted beside the forward pass, or after it."""
    table = table.clone().requires_grad_()

    def forward():
        return functional.linear(embedding(table, tokens, padding=0), weight).square().sum()

    if in_branch:
        with branch_of_forward(GPU):
            loss = forward()
    else:
        loss = forward()
    return torch.autograd.grad(loss, table)[0]


def test_tokens_sorted_beside_the_forward_pass_give_the_same_gradient():
    table, weight = torch.randn(3000, 104, device=GPU), torch.randn(64, 104, device=GPU)
    tokens = torch.randint(0, 3000, (20_000,), device=GPU)
    expected = train(tokens, False, table, weight)
    assert torch.equal(train(tokens, True, table, weight), expected)
    graphs = Graphs(lambda tokens: train(tokens, True, table, weight), "the step", GPU)
    for _ in range(3):
        assert torch.equal(graphs(tokens), expected)
    assert not graphs.failed


def test_a_forward_pass_alone_is_captured_too():
    table = nn.Parameter(torch.randn(50, 8, device=GPU))

    def forward(tokens):
        with branch_of_forward(GPU):
            return embedding(table, tokens)

    graphs = Graphs(forward, "the forward pass", GPU)
    for _ in range(3):
        tokens = torch.randint(0, 50, (30,), device=GPU)
        assert torch.equal(graphs(tokens), table[tokens])
    assert not graphs.failed
