"""The speed record's runs, in small on the CPU: what is trained on, what is read, and that a seed gives one result."""

import numpy as np
import pytest
import torch

from benchmarks import speed_record
from benchmarks.checkpoint import drawn_images
from reread.storage.errors import InputError
from reread.storage.ledger import LEDGER, add_reads, read_ledger

CPU = torch.device("cpu")


def test_a_seed_gives_one_result_whatever_ran_before_it_and_classes_are_learnt(capsys):
    prepared = drawn_images((60, 20))
    prepared.description["splits"]["test"] = [80, 80]
    prepared.labels[:] %= 2
    # One class is bright.
    prepared.arrays["images"][:] = prepared.arrays["images"] // 4 + (prepared.labels * 150)[:, None, None, None]
    recipe = speed_record.RECIPES["94"].changed({"widths": [4, 8, 8]}, {"batch_size": 30, "max_epochs": 8})
    both = speed_record.measure(recipe, prepared, CPU, [3, 4], validation=True)
    alone = speed_record.measure(recipe, prepared, CPU, [4], validation=True)
    assert both["runs"][1]["loss"] == alone["runs"][0]["loss"] != both["runs"][0]["loss"]
    assert both["runs"][1]["accuracy"] == alone["runs"][0]["accuracy"] > 0.9
    assert both["rows"] == 60 and both["evaluated_on"] == "validation"
    seconds = alone["runs"][0]["seconds"]
    assert np.isclose(seconds["whole"], sum(value for name, value in seconds.items() if name != "whole"))
    assert "2 seeds" in speed_record.summary(both) and "seed 4: " in capsys.readouterr().out


def test_a_record_on_test_images_has_an_entry_in_the_ledger_and_beside_its_figures(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    prepared = drawn_images((60, 20))
    splits = {"train": [0, 40], "validation": [40, 60], "test": [60, 80]}
    prepared.description.update(name="cifar10", data_version="1234abcd", splits=splits)
    recipe = speed_record.RECIPES["94"].changed({"widths": [4, 8, 8]}, {"batch_size": 30, "max_epochs": 1})
    with pytest.raises(InputError, match="cifar10 is read without an entry"):
        speed_record.measure(recipe, prepared, CPU, [3])
    # A machine without the project needs a file to write beside, and one with it does not.
    with pytest.raises(InputError, match="--json"):
        speed_record.recorded("94", recipe, prepared, [3], None)
    file = tmp_path / "figures" / "speed.json"
    with speed_record.recorded("94", recipe, prepared, [3], file):
        assert speed_record.measure(recipe, prepared, CPU, [3])["evaluated_on"] == "test"
    (entry,) = read_ledger(tmp_path / "figures" / "speed.json.test-reads.jsonl")
    assert (entry.reader, entry.data) == ("speed record 94", {"cifar10": "1234abcd"})
    assert not LEDGER.exists()
    LEDGER.parent.mkdir()
    with speed_record.recorded("94", recipe, prepared, [4], None) as entries:
        assert [read.reader for read in entries] == ["speed record 94"]
    assert [read.changed for read in add_reads([entry])] == ["first read", "first read"]
