"""reread index: a page of all verdicts in a folder, each computed again first."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from reread.storage.source import ROOT
from tests.reread.evaluation.pages import NARROW, accessibility_faults, open_page
from tests.reread.tracking.comparison import browser, missing


@pytest.fixture
def verdicts(reread, tmp_path) -> Path:
    """A folder with a verdict of reread judge and two published experiments."""
    folder = tmp_path / "verdicts"
    reread("judge", str(ROOT / "docs/claim.yaml"), "--output", str(folder / "swish"))
    for name in ("precision-han", "quantiles-docstrings"):
        shutil.copytree(ROOT / "results" / name, folder / "published" / name)
    return folder


def test_verdicts_of_both_kinds_are_listed_with_their_files(reread, verdicts, tmp_path):
    site = tmp_path / "site"
    said = reread("index", str(verdicts), "--output", str(site), "--title", "Claims <here>")
    entries = json.loads((site / "index.json").read_text())
    assert said.startswith(f"{len(entries)} claims: ")
    assert Counter(entry["file"] for entry in entries) == {
        "swish/verdict.json": 2,
        "published/precision-han/verdict.json": 3,
        "published/quantiles-docstrings/verdict.json": 3,
    }
    assert {entry["verdict"] for entry in entries} == {"equivalent", "supported", "different", "inconclusive"}
    page = (site / "index.html").read_text()
    assert "Claims &lt;here&gt;" in page and all(entry["claim"] in page for entry in entries)
    # What the page links to is copied; the folder of the verdicts got nothing.
    assert (site / "swish/verdict.json").is_file() and (site / "swish/report.html").is_file()
    assert not list(verdicts.glob("index.*"))


def test_every_published_claim_becomes_a_verdict_that_can_be_verified_alone(reread, verdicts, tmp_path):
    shutil.copytree(ROOT / "results/studies/deletion/docstrings", verdicts / "study")
    reread("index", str(verdicts), "--output", str(tmp_path / "site"))
    for place in ("published/precision-han", "study"):
        path = tmp_path / "site" / place / "verdict.json"
        assert "all values agree" in reread("verify", str(path))
        content = json.loads(path.read_text())
        assert [len(source["sha256"]) for source in content["inputs"]] == [64] * (2 if "han" in place else 1)
        content["claims"][0]["mean"] += 0.001
        path.write_text(json.dumps(content))
        assert "mean is published as" in reread("verify", str(path), code=1)
    about = json.loads((tmp_path / "site/published/quantiles-docstrings/verdict.json").read_text())["provenance"]
    runs = json.loads((ROOT / "results/quantiles-docstrings/runs.json").read_text())
    assert about["command"] == "reread run --experiment quantiles-docstrings" and about["data"].startswith(
        "docstrings "
    )
    assert about["source"] == ", ".join(sorted({run["commit"] for run in runs})) and about["hardware"]


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_the_page_filters_and_can_be_read_by_all(reread, verdicts):
    reread("index", str(verdicts))
    with browser() as driver:
        open_page(driver, verdicts / "index.html")
        assert accessibility_faults(driver) == [] and driver.get_log("browser") == []
        rows = driver.find_elements("css selector", "table.sortable tbody tr")
        assert len(rows) == 8
        driver.find_element("css selector", "input.filter").send_keys("precision-han")
        assert sum(row.is_displayed() for row in rows) == 3


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
@pytest.mark.parametrize("width", [1400, NARROW])
def test_the_table_shows_each_column_whole_with_long_metrics_and_places(reread, tmp_path, width):
    for name in ("max-pooling", "parallel-translation"):
        shutil.copytree(ROOT / "results/claims" / name, tmp_path / "verdicts/claims" / name)
    reread("index", str(tmp_path / "verdicts"))
    with browser() as driver:
        open_page(driver, tmp_path / "verdicts/index.html", width=width)
        for box in ("html", ".scroll"):
            fits = "const box = document.querySelector(arguments[0]); return box.scrollWidth <= box.clientWidth"
            assert driver.execute_script(fits, box)


def test_a_verdict_that_its_scores_do_not_give_stops_the_page(reread, verdicts):
    path = verdicts / "swish/verdict.json"
    content = json.loads(path.read_text())
    content["claims"][0]["verdict"] = "supported"
    path.write_text(json.dumps(content))
    said = reread("index", str(verdicts), code=2)
    assert "verdict is published as 'supported', and the rule gives 'equivalent'; nothing is written" in said
    assert not list(verdicts.glob("index.*"))


def test_a_folder_without_verdicts_is_refused(reread, tmp_path):
    assert f"{tmp_path} has no verdicts" in reread("index", str(tmp_path), code=2)
    assert "there is no folder" in reread("index", str(tmp_path / "none"), code=2)
