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
    found = json.loads(path.read_text())
    places = {(one["shape"], one["seeds"], one["comparisons"]) for one in found["rates"]}
    assert places == {(shape, 6, many) for shape in verdicts.SHAPES for many in (1, 3)}
    for one in found["rates"]:
        assert one["direction"] <= 0.3 and one["equivalence"] <= 0.3 and one["size"] <= 0.3 and one["coverage"] > 0.8
    assert [one["item_deviation"] for one in found["by_items"]] == list(verdicts.ITEM_DEVIATIONS)
    assert all(one["direction"] <= 0.3 for one in found["by_items"])
    by_place = {(one["seeds"], one["comparisons"]): one for one in found["power"]}
    assert set(by_place) == {(seeds, many) for seeds in (6, 8) for many in verdicts.POWER_COMPARISONS}
    # Pairs of six seeds show nothing with three comparisons; two samples do.
    assert by_place[6, 3]["pairs"] == 0 < by_place[6, 3]["other_items"] <= by_place[6, 3]["rule"] + 0.2
    assert by_place[8, 1]["rule"] >= by_place[8, 13]["rule"]
    assert [one["looks"] for one in found["looks"]] == [name for name, _, _ in verdicts.LOOKS]
