"""The simulation of the rule, by its command, with few draws."""

import json

import pytest

from benchmarks import verdicts


def test_the_figures_of_every_kind_are_written(tmp_path, monkeypatch):
    path = tmp_path / "figures.json"
    for name, value in (("SEEDS", (6,)), ("COMPARISONS", (1, 3)), ("POWER_SEEDS", (6, 8))):
        monkeypatch.setattr(verdicts, name, value)
    monkeypatch.setattr("sys.argv", ["verdicts", "--draws", "20", "--json", str(path)])
    with pytest.raises(SystemExit) as ended:
        verdicts.main()
    assert not ended.value.code
    figures = json.loads(path.read_text())
    places = {(row["shape"], row["seeds"], row["comparisons"]) for row in figures["rates"]}
    assert places == {(shape, 6, many) for shape in verdicts.SHAPES for many in (1, 3)}
    for row in figures["rates"]:
        assert row["direction"] <= 0.3 and row["equivalence"] <= 0.3 and row["size"] <= 0.3 and row["coverage"] > 0.8
    assert [row["item_deviation"] for row in figures["by_items"]] == list(verdicts.ITEM_DEVIATIONS)
    assert all(row["direction"] <= 0.3 for row in figures["by_items"])
    by_place = {(row["seeds"], row["comparisons"]): row for row in figures["power"]}
    assert set(by_place) == {(seeds, many) for seeds in (6, 8) for many in verdicts.POWER_COMPARISONS}
    # Pairs of six seeds show nothing with three comparisons; two samples do.
    assert by_place[6, 3]["pairs"] == 0 < by_place[6, 3]["other_items"] <= by_place[6, 3]["rule"] + 0.2
    assert by_place[8, 1]["rule"] >= by_place[8, 13]["rule"]
    assert [row["looks"] for row in figures["looks"]] == [name for name, _, _ in verdicts.LOOKS]
