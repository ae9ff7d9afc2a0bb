"""The benchmark of several processes, in small on a CPU."""

import json

import pytest

from benchmarks import scaling
from storage.errors import InputError

WAYS = ["flat", "flat-graph", "flat-bf16", "ddp-1-static"]


def test_two_processes_have_the_losses_of_one_however_gradients_are_summed(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = tmp_path / "found.json"
    scaling.main(
        [
            "han-all",
            "densenet",
            "--debug",
            "--steps",
            "3",
            "--processes",
            "1",
            "2",
            "--ways",
            *WAYS,
            "--json",
            str(found),
        ]
    )
    rows = json.loads(found.read_text())["rows"]
    two = [row for row in rows if row["case"] == "han-all" and row["processes"] == 2]
    assert [row["way"] for row in two] == WAYS
    for row in two:
        assert row["loss_difference"] < (0.02 if "bf16" in row["way"] else 1e-5), row
        assert row["step"] > 0 and row["with_batches"] > 0 and row["all_reduce"] > 0
    one = next(row for row in rows if row["case"] == "densenet" and row["processes"] == 1)
    other = next(row for row in rows if row["case"] == "densenet" and row["processes"] == 2)
    assert (one["batch"], other["batch"]) == (8, 16) and other["loss_difference"] is None
    assert other["efficiency"] == pytest.approx(other["rows_per_second"] / one["rows_per_second"] / 2)
    assert f"{other['rows_per_second']:,.0f}" in capfd.readouterr().out


@pytest.mark.parametrize("name", ["ddp", "flat-5", "ddp-5-graph", "ring"])
def test_another_way_is_refused(name):
    with pytest.raises(InputError, match=name):
        scaling.Way.of(name)
