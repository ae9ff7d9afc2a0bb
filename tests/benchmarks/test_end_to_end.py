"""The benchmark of whole runs, in small on a CPU."""

import dataclasses

import pytest
import torch

from benchmarks import end_to_end

SMALL = {"han": {"embedding_dim": 8, "hidden_size": 4}, "densenet": {"depth": 10, "growth_rate": 4}}


@pytest.mark.parametrize("name", ["han", "densenet"])
def test_a_run_is_timed_beside_its_step(name, monkeypatch):
    monkeypatch.setattr(end_to_end, "PASSES", 1)
    subject = end_to_end.SUBJECTS[name]
    draw = {"han": end_to_end.drawn_text, "densenet": end_to_end.drawn_images}[name]
    small = dataclasses.replace(subject, network=SMALL[name], training={**subject.training, "batch_size": 16})
    try:
        result = end_to_end.measure(small, draw((64, 16)), torch.device("cpu"), epochs=3, warm=1)
    finally:
        torch.use_deterministic_algorithms(False)
    pace = result["rows_per_second"]
    assert pace["epoch"] > pace["with validation"] > pace["whole"] > 0
    assert pace["step alone"] > 0 and result["steps_per_epoch"] == 4
    assert {len(seconds) for seconds in result["seconds"].values()} == {3}
    assert f"| whole | {pace['whole']:,.0f} |" in end_to_end.table(name, result)
