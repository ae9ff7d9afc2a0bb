"""The benchmark of a checkpoint per epoch, in small on a CPU."""

import dataclasses

import torch

from benchmarks import checkpoint
from reread.planning.resolve import make_plan
from reread.storage.source import ROOT


def test_a_checkpoint_is_timed_as_a_share_of_an_epoch(tmp_path):
    subject = make_plan("densenet-fast", root=ROOT).variants["densenet-100"]
    small = dataclasses.replace(subject, network={**subject.network, "depth": 10, "growth_rate": 4})
    try:
        result = checkpoint.measure(small, checkpoint.drawn_images((40, 10)), torch.device("cpu"), 3, 1, 1, tmp_path)
    finally:
        torch.use_deterministic_algorithms(False)
    seconds = result["seconds"]
    assert {name: len(values) for name, values in seconds.items()} == dict.fromkeys(seconds, 2)
    # On a CPU training waits for the whole checkpoint.
    assert 0 < result["medians"]["writing"] <= result["medians"]["waited"]
    assert result["epoch"] == result["medians"]["without"] * 1000 and 0 < result["share"] < 1
    assert f"{result['share']:.2%}" in checkpoint.line("densenet", result)
    assert list(tmp_path.iterdir()) == []
