"""On a CPU there is no second stream: what would run there runs at once."""

import torch

from cuda_ext.branch import aside_of_forward, branch, branch_of_forward

CPU = torch.device("cpu")


def test_on_a_cpu_a_function_runs_at_once():
    done = []
    with branch(CPU) as aside:
        assert aside(lambda: done.append("aside") or 7) == 7
        done.append("block")
    assert done == ["aside", "block"]


def test_operations_find_the_branch_within_the_block_alone():
    assert aside_of_forward() is None
    with branch_of_forward(CPU):
        outer = aside_of_forward()
        with branch_of_forward(CPU):
            assert aside_of_forward() is not outer
        assert aside_of_forward() is outer
    assert aside_of_forward() is None
