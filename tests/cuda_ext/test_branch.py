"""On a CPU there is no second stream: what would run there runs at once."""

import pytest
import torch
from torch import nn

from cuda_ext.branch import branch, branch_of_step, current_branch

CPU = torch.device("cpu")


def test_on_a_cpu_a_function_runs_at_once():
    done = []
    with branch(CPU) as beside:
        assert beside(lambda: done.append("beside") or 7) == 7
        done.append("block")
    assert done == ["beside", "block"]


def test_operations_find_the_branch_within_the_block_alone():
    assert current_branch() is None
    with branch_of_step(CPU) as outer:
        with branch_of_step(CPU) as inner:
            assert current_branch() is inner and inner is not outer
        assert current_branch() is outer
    assert current_branch() is None


def test_gradients_are_added_when_the_block_ends():
    parameters = [nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[1].grad = torch.ones(2)
    parameters[2].requires_grad_(False)
    gradients = [torch.full((2,), float(number)) for number in (2, 3, 4)]
    with torch.no_grad(), branch_of_step(CPU) as beside:
        beside.begin_backward()
        assert beside.gradients(parameters, gradients) == [None] * 3
        assert beside.gradients(parameters[:1], gradients[:1]) == [None]
        assert parameters[0].grad is None
    assert [None if tensor.grad is None else tensor.grad.tolist() for tensor in parameters] == [[4, 4], [4, 4], None]


@pytest.mark.parametrize("case", ["computed", "hook", "hook afterwards", "forward pass", "second derivative", "ended"])
def test_gradients_that_autograd_has_to_have_are_not_added_later(case):
    parameter, gradient = nn.Parameter(torch.zeros(2)), torch.ones(2)
    tensor = parameter * 2 if case == "computed" else parameter
    if case == "hook":
        parameter.register_hook(lambda gradient: gradient)
    if case == "hook afterwards":
        parameter.register_post_accumulate_grad_hook(lambda tensor: None)
    with torch.set_grad_enabled(case == "second derivative"):
        with branch_of_step(CPU) as beside:
            if case != "forward pass":
                beside.begin_backward()
            if case != "ended":
                assert beside.gradients([tensor], [gradient])[0] is gradient
        if case == "ended":
            assert beside.gradients([tensor], [gradient])[0] is gradient
    assert parameter.grad is None
