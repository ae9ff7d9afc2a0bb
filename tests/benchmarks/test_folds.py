"""The simulation of cross-validation, by its command, with few draws."""

import json

import pytest

from benchmarks import folds


def test_folds_that_share_rows_are_wrong_less_often_with_the_correction(tmp_path, monkeypatch):
    path = tmp_path / "figures.json"
    monkeypatch.setattr(folds, "DESIGNS", ((60, 5, 6, 20, True),))
    monkeypatch.setattr("sys.argv", ["folds", "--draws", "60", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        folds.main()
    assert not ended.value.code
    (design,) = json.loads(path.read_text())["designs"]
    # Of 60 draws 3 are wrong at the level, 8 or more with a chance of 2 %.
    assert design["corrected"] <= 8 / 60 and design["corrected"] <= design["uncorrected"] <= design["seeds_alone"]
