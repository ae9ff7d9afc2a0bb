"""MLflow's pages in a real browser: two variants compared, an experiment's table and charts, and a variant's page."""

import os
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from reread.storage.files import read_json, write_json
from reread.tracking.pages import experiment_page, run_page
from reread.tracking.runs import open_tracking
from reread.tracking.views import CHARTS, VARIANTS
from tests.reread.tracking.comparison import (
    browser,
    missing,
    open_comparison,
    server,
    show_differences,
    shown_rows,
    take_picture,
)
from tests.reread.tracking.examples import evaluate_run, finish_run, make_job, prepared_text

pytestmark = pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))


def write_report(folder: Path, run_keys: Mapping[str, Sequence[str]]) -> Path:
    """Write a report of two variants with one verdict, of the runs with these keys; return its folder."""
    scores = {"han": (0.9, 0.6459, 1.0), "gru-flat": (0.8, 0.5459, 1.0)}
    variants = {
        name: {"data": "snippets", "score": "accuracy", "n": 2, "parameters": 1234,
               "seeds": {str(seed): {"run_key": key} for seed, key in enumerate(run_keys[name])},
               "test": {"accuracy": dict(zip(("mean", "low", "high"), values, strict=True))}}
        for name, values in scores.items()
    }  # fmt: skip
    verdict = {"name": "better", "verdict": "supported", "claim": "HAN is better.", "sentence": "It is.",
               "treatment": "han", "control": "gru-flat"}  # fmt: skip
    contents = {
        "metrics.json": {"evaluated_on": "test", "variants": variants},
        "verdicts.json": {"verdicts": [verdict]},
        "plan.json": {"title": "A trial of two variants"},
    }
    report = folder / "reports/trial"
    for name, value in contents.items():
        write_json(report / name, value)
    (report / "report.html").write_text("<p>The report</p>")
    return report


def page_text(driver, address: str, wanted: str) -> str:
    """Open a page of MLflow and return its text once it has ``wanted``."""
    driver.get("about:blank")
    driver.get(address)
    WebDriverWait(driver, 60).until(lambda page: wanted in page.find_element("tag name", "body").text)
    return driver.find_element("tag name", "body").text


def test_the_pages_of_two_variants(tmp_path, monkeypatch, empty_databases):
    shutil.copy2(empty_databases / "mlflow.db", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prepared = prepared_text(tmp_path)
    tracking = open_tracking()
    run_keys: dict[str, list[str]] = {}
    # The first han, with another rate, was in an earlier report, which the second replaces.
    for variant, rate, scores in (
        ("gru-flat", 0.02, (0.78, 0.82)), ("han", 0.3, (0.28, 0.32)), ("han", 0.01, (0.88, 0.92))
    ):  # fmt: skip
        run_keys[variant] = []
        for seed, score in enumerate(scores):
            job = make_job(tmp_path, prepared, variant.replace("-", "_"), seed, variant, learning_rate=rate)
            run = finish_run(job, score)
            write_json(run / "timing.json", {"seconds": 2.5})
            if variant == "gru-flat":
                # The experiment had another name for the variant before.
                tracking.record(replace(job, variant="gru"), evaluate_run(run, score))
            tracking.record(job, evaluate_run(run, score))
            run_keys[variant].append(job.run_key)
        if rate == 0.3:
            tracking.report(write_report(tmp_path, run_keys))
    tracking.report(write_report(tmp_path, run_keys))
    parents = tracking.parents("trial")
    run_ids = [parents["han"], parents["gru-flat"]]
    experiment_id = tracking.experiment("trial")
    about = read_json(prepared / "prepared.json")
    tracking.baseline("trial", "snippets", "tf-idf", ({"C": 1.0}, {"test.accuracy": 0.85, "parameters": 7.0}), about)

    with server(tracking.uri, tmp_path / "mlartifacts", tmp_path / "server.log") as address, browser() as driver:
        open_comparison(driver, address, experiment_id, run_ids)
        everything = shown_rows(driver)
        assert everything["Run ID:"] == run_ids
        assert everything["Run Name:"] == ["han", "gru-flat"]
        assert everything["training.batch_size"] == ["2", "2"]
        # The chart draws the first metric against what differs.
        assert "test.accuracy.mean" in driver.find_element("css selector", ".js-plotly-plot").text

        show_differences(driver)
        differences = shown_rows(driver)
        assert "training.batch_size" not in differences
        assert differences["training.learning_rate"] == ["0.01", "0.02"]
        assert differences["variant"] == ["han", "gru-flat"]
        assert [float(value) for value in differences["test.accuracy.mean"]] == pytest.approx([0.9, 0.8], abs=5e-4)
        # Two seeds, 0.02 on either side of their mean: half width t(0.975, 1) * 0.02 = 0.254.
        assert [float(value) for value in differences["test.accuracy.mean_low"]] == pytest.approx(
            [0.646, 0.546], abs=1e-3
        )
        take_picture(driver, tmp_path / "comparison.png")

        # The table that `reread ui` opens: result with interval, seeds and verdict first, the best variant on top.
        text = page_text(driver, experiment_page(address, experiment_id, VARIANTS), "0.9000 [0.6459, 1.0000]")
        order = ["result", "variant.seeds", "verdict", "test.accuracy.mean"]
        heads = driver.find_elements("css selector", ".ag-header-cell")
        placed = {head.text.strip(): head.rect["x"] for head in heads}
        assert sorted(order, key=placed.__getitem__) == order
        assert text.index("0.9000 [") < text.index("0.8500") < text.index("0.8000 [") and "3 matching runs" in text
        assert "supported (against gru-flat)" in text
        assert "A trial of two variants. Report" in text

        text = page_text(driver, experiment_page(address, experiment_id, CHARTS, charts=True), "Group: gru-flat")
        assert "By variant, over seeds" in text
        assert all(chart in text for chart in ("test.accuracy", "validation_loss", "training_loss"))
        # MLflow counts the variants of the seeds, too.
        assert "6 matching runs" in text, text

        text = page_text(driver, run_page(address, experiment_id, parents["han"]), "Duration")
        assert "han on snippets: Accuracy 0.9000" in text and "models of snippets" in text
        assert "reread train --experiment trial --variant han" in text
        assert "han-seed-1" in text and "Duration\n5.0s" in text
        link = driver.find_element("link text", "Report").get_attribute("href")
        assert link.startswith(address) and link.endswith("artifacts/report.html")
    picture = (tmp_path / "comparison.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture[1:4] == b"PNG"
    # Tall enough to show the metrics, which lie below the first screen.
    assert width >= 1300 and height > 1250
