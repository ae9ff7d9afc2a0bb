"""MLflow's page that compares two variants, in a real browser: it shows their names, differences and figures."""

import os
import struct
from pathlib import Path

import pytest

from tests.tracking.comparison import (
    browser,
    missing,
    open_comparison,
    server,
    show_differences,
    shown_rows,
    take_picture,
)
from tests.tracking.examples import evaluate_run, finish_run, make_job, prepared_text
from tracking.runs import open_tracking

pytestmark = [
    # MLflow 3.17 uses what SQLAlchemy and pandas have deprecated.
    pytest.mark.filterwarnings("ignore::DeprecationWarning:mlflow"),
    pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing())),
]


def test_the_comparison_of_two_variants(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    prepared = prepared_text(tmp_path)
    tracking = open_tracking()
    for variant, rate, scores in (("han", 0.01, (0.88, 0.92)), ("gru-flat", 0.02, (0.78, 0.82))):
        for seed, score in enumerate(scores):
            job = make_job(tmp_path, prepared, variant.replace("-", "_"), seed, variant, learning_rate=rate)
            tracking.record(finish_run(job, score), evaluate_run(Path(job["run_directory"]), score))
    parents = tracking.parents("trial")
    run_ids = [parents["han"], parents["gru-flat"]]

    with server(tracking.uri, tmp_path / "mlartifacts", tmp_path / "server.log") as address, browser() as driver:
        open_comparison(driver, address, tracking.experiment("trial"), run_ids)
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
    picture = (tmp_path / "comparison.png").read_bytes()
    width, height = struct.unpack(">II", picture[16:24])
    assert picture[1:4] == b"PNG"
    # Tall enough to show the metrics, which lie below the first screen.
    assert width >= 1300 and height > 1250
