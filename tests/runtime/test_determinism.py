"""Threads and determinism of one block leave the process as it was."""

import pytest
import torch

from runtime.determinism import determinism, threads


def state() -> tuple:
    return (
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cudnn.benchmark,
        torch.utils.deterministic.fill_uninitialized_memory,
    )


def test_a_block_restores_the_process(monkeypatch):
    before = state()
    with pytest.raises(ZeroDivisionError), threads(before[0] + 1), determinism():
        assert state() == (before[0] + 1, True, False, False)
        _ = 1 / 0
    assert state() == before
    with determinism(False):
        assert torch.backends.cudnn.benchmark
    assert state() == before
