"""Branches on a GPU: what runs beside a block is whole when the block ends, called and captured."""

from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional

from cuda_ext.branch import Branch, branch, branch_of_step, current_branch
from cuda_ext.embedding import embedding
from cuda_ext.graphs import Graphs
from cuda_ext.gru import gru
from models.layers.classifier import Classifier

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
    with branch(GPU) as beside:
        twice = beside(lambda: late(x))
        thrice = 3 * x
    assert torch.equal(twice + thrice, 2 * x + 3 * x)


def test_what_runs_beside_the_block_waits_for_what_came_before():
    x = torch.randn(1000, device=GPU)
    before = late(x)
    with branch(GPU) as beside:
        copied = beside(before.clone)
    assert torch.equal(copied, 2 * x)


def test_a_graph_has_both_branches():
    def work(x):
        with branch(GPU) as beside:
            twice = beside(lambda: late(x))
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
        with branch_of_step(GPU):
            results.append(current_branch()(lambda: late(x)))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert torch.equal(results[0], 2 * x)
    assert current_branch() is None


def test_what_a_function_reads_is_kept_until_the_join():
    x = torch.randn(1 << 20, device=GPU)
    expected = 2 * x
    with branch(GPU) as beside:
        read = x.clone()

        def twice(read=read):
            torch.cuda._sleep(LONG)
            return 2 * read

        result = beside(twice)
        del read, twice
        # It would take the memory that was free.
        other = torch.zeros_like(x)
    assert torch.equal(result, expected) and not other.any()


def gradients(compute, parameters, in_step):
    """The gradients of ``parameters`` for the loss that ``compute`` returns, with or without a branch beside."""
    for parameter in parameters:
        parameter.grad = None
    with branch_of_step(GPU) if in_step else nullcontext(Branch(torch.device("cpu"))) as beside:
        loss = compute()
        beside.begin_backward()
        loss.backward()
    return [parameter.grad for parameter in parameters]


def same_in_a_step(compute, parameters, *inputs):
    """Whether the gradients of ``compute(*inputs)`` are the same bits without a branch, with one, and captured."""
    expected = [gradient.clone() for gradient in gradients(lambda: compute(*inputs), parameters, in_step=False)]
    graphs = Graphs(lambda *given: gradients(lambda: compute(*given), parameters, in_step=True), "the step", GPU)
    results = [[gradient.clone() for gradient in graphs(*inputs)] for _ in range(4)]
    return not graphs.failed and all(
        torch.equal(*pair) for result in results for pair in zip(result, expected, strict=True)
    )


def test_tokens_sorted_beside_the_forward_pass_give_the_same_gradient():
    table, weight = nn.Parameter(torch.randn(3000, 104, device=GPU)), torch.randn(64, 104, device=GPU)
    tokens = torch.randint(0, 3000, (20_000,), device=GPU)

    def loss(tokens):
        return functional.linear(embedding(table, tokens, padding=0), weight).square().sum()

    assert same_in_a_step(loss, [table], tokens)


@pytest.mark.parametrize("case", ["alone", "twice", "with a hook", "computed", "bfloat16"])
def test_a_gru_s_gradients_beside_the_backward_pass_are_the_same(case):
    layers = [nn.GRU(40, 20, bidirectional=True).to(GPU), nn.GRU(40, 20, bidirectional=True).to(GPU)]
    first, second = (list(layer.parameters()) for layer in layers)
    x, lengths = torch.randn(300, 12, 40, device=GPU), torch.randint(1, 13, (300,), device=GPU)
    if case == "with a hook":
        first[1].register_hook(lambda gradient: 2 * gradient)

    def loss(x):
        used = [2 * tensor for tensor in first] if case == "computed" else first
        with torch.autocast("cuda", torch.bfloat16, enabled=case == "bfloat16"):
            states, _ = gru(x, lengths, used, bidirectional=True)
            states, _ = gru(states, lengths, first if case == "twice" else second, bidirectional=True)
        return states.float().square().sum()

    assert same_in_a_step(loss, first if case == "twice" else [*first, *second], x)


def test_gradients_that_a_forward_pass_asks_for_are_added_to_no_parameter():
    layer = nn.GRU(8, 4, bidirectional=True).to(GPU)
    parameters, lengths = list(layer.parameters()), torch.tensor([3, 2], device=GPU)
    x = torch.randn(2, 3, 8, device=GPU, requires_grad=True)

    def states():
        return gru(x, lengths, parameters, bidirectional=True)[0]

    expected = torch.autograd.grad(states().sum(), [x, *parameters])
    with branch_of_step(GPU):
        asked = torch.autograd.grad(states().sum(), [x, *parameters])
        with pytest.raises(RuntimeError, match="gru has no second derivative"):
            torch.autograd.grad(states().sum(), x, create_graph=True)[0].sum().backward()
    assert all(map(torch.equal, asked, expected))
    assert all(parameter.grad is None for parameter in parameters)


def test_a_classifier_s_gradients_beside_the_backward_pass_are_those_of_a_linear_layer():
    classifier = Classifier(100, 5).to(GPU)
    x = nn.Parameter(torch.randn(64, 100, device=GPU))

    def loss():
        with torch.autocast("cuda", torch.bfloat16):
            return classifier(x).square().sum()

    used = [x, *classifier.parameters()]
    expected = [gradient.clone() for gradient in gradients(loss, used, in_step=False)]
    graphs = Graphs(lambda: gradients(loss, used, in_step=True), "the step", GPU)
    for _ in range(3):
        torch.testing.assert_close(graphs(), expected)
    assert not graphs.failed


def test_a_forward_pass_alone_is_captured_too():
    table = nn.Parameter(torch.randn(50, 8, device=GPU))

    def forward(tokens):
        with branch_of_step(GPU):
            return embedding(table, tokens)

    graphs = Graphs(forward, "the forward pass", GPU)
    for _ in range(3):
        tokens = torch.randint(0, 50, (30,), device=GPU)
        assert torch.equal(graphs(tokens), table[tokens])
    assert not graphs.failed
