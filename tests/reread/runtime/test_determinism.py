"""Threads and determinism of one block leave the process as it was."""

import pytest
import torch

from reread.runtime.determinism import determinism, threads


def state() -> tuple:
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def assert_changed_and_fail(number: int) -> float:
    assert state() == (number, True, False, False)
    return 1 / 0


def test_a_block_restores_the_process():
    before = state()
    with pytest.raises(ZeroDivisionError), threads(before[0] + 1), determinism():
        assert_changed_and_fail(before[0] + 1)
    assert state() == before
    with determinism(False):
        assert torch.backends.cudnn.benchmark
    assert state() == before
