"""The benchmark of several processes, in small on a CPU."""

import json

import pytest

from benchmarks import scaling
from reread.storage.errors import InputError

WAYS = ["flat", "flat-graph", "flat-bf16", "ddp-1-static"]


def test_two_processes_have_the_losses_of_one_however_gradients_are_summed(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = tmp_path / "found.json"
    sizes = ["--debug", "--steps", "3", "--processes", "1", "2"]
    scaling.main(["han-all", *sizes, "--ways", *WAYS, "--json", str(path)])
    single, *two = json.loads(path.read_text())["rows"]
    assert [row["way"] for row in two] == WAYS
    for row in two:
        assert row["loss_difference"] < (0.02 if "bf16" in row["way"] else 1e-5), row
        assert row["step"] > 0 and row["with_batches"] > 0 and row["all_reduce"] > 0
        assert row["efficiency"] == pytest.approx(row["rows_per_second"] / single["rows_per_second"] / 2)
    assert f"{two[0]['rows_per_second']:,.0f}" in capfd.readouterr().out


def test_losses_of_other_batches_are_not_compared():
    single, two = (
        {"case": "han", "processes": n, "batch": 8 * n, "rows_per_second": 10.0, "losses": [1.0]} for n in (1, 2)
    )
    row = scaling.with_efficiency([single, two])[1]
    assert row["efficiency"] == 0.5 and row["loss_difference"] is None


@pytest.mark.parametrize("name", ["ddp", "flat-5", "ddp-5-graph", "ring"])
def test_another_way_is_refused(name):
    with pytest.raises(InputError, match=name):
        scaling.Way.of(name)
