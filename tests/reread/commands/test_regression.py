"""A table with a number per row: added, tried, reported, read from Python and answered."""

import json
import os
import random

import pytest
from selenium.webdriver.support.ui import WebDriverWait

from tests.reread.commands.test_predict import serving
from tests.reread.tracking.comparison import browser, missing

WORDS = {"good": 1.5, "great": 2.5, "bad": -1.5, "awful": -2.5}
PREDICTIONS = """
import json, reread
runs = reread.runs("films")
for key, run in runs[runs["test.r2"].notna()].iterrows():
    table = reread.predictions(key)
    error = table["label"] - table["prediction"]
    assert abs((error**2).mean() ** 0.5 - run["test.rmse"]) < 1e-4 * run["test.rmse"], key
print(len(table))
"""


def write_films(path, rows=160):
    """Each film's score is the sum of what its words are worth, in another unit than 1."""
    draw = random.Random(0)
    lines = ["review,score"]
    for number in range(rows):
        words = draw.choices(list(WORDS), k=4)
        score = 500 + 100 * sum(map(WORDS.get, words)) + draw.gauss(0, 10)
        lines.append(f"{' '.join(words)} film {number},{score:.1f}")
    lines[3] = "no score yet,NA"
    path.write_text("\n".join(lines) + "\n")


def test_a_number_per_row_is_learned_judged_and_predicted(project, prefect_api):
    project, root = project.using(prefect_api), project.directory
    write_films(root / "films.csv")
    added = project.run(
        "python", "-m", "reread", "data", "add", "films.csv", "--label", "score", "--task", "regression"
    )
    assert "score, a number" in added.stdout and "left out: 1 row with no label" in added.stdout
    entry = json.loads((root / "data.manifest.json").read_text())["datasets"]["films"]
    assert (entry["task"], entry["classes"], sum(entry["splits"].values())) == ("regression", ["score"], 159)

    command = ("-m", "reread", "try", "films", "--seeds", "2", "--epochs", "4", "--minutes", "0")
    said = project.run("python", *command, "--variant", "word_average").stdout
    assert "Champion: tf-idf-boosting, which cannot be served" in said
    metrics = json.loads((root / "reports/films/metrics.json").read_text())
    assert set(metrics["baselines"]["films"]) == {"tf-idf-ridge", "tf-idf-boosting"}
    assert metrics["baselines"]["films"]["tf-idf-ridge"]["test"]["r2"] > 0.8
    of_network = metrics["variants"]["word-average"]
    assert of_network["score"] == "r2" and set(of_network["test"]) == {"r2", "rmse", "mae"}
    (verdict,) = json.loads((root / "reports/films/verdicts.json").read_text())["verdicts"]
    assert (verdict["metric"], verdict["control"]) == ("r2", "tf-idf-boosting") and verdict["mean"] < 0
    page = (root / "reports/films/report.html").read_text()
    assert 'id="curves"' in page and 'id="calibration"' not in page and 'id="confusion"' not in page

    assert int(project.run("python", "-c", PREDICTIONS).stdout) == entry["splits"]["test"]
    texts = ("great great great great", "awful awful awful awful")
    predict = ("-m", "reread", "predict", "--data", "films", "--version", "2", "--json")
    answers = project.run("python", *predict, *texts).stdout.splitlines()
    high, low = (json.loads(line)["prediction"] for line in answers)
    assert high > 1000 > 500 > low
    said = project.run("python", *predict[:-1], "", texts[0]).stdout
    assert f"{high:.6g}" in said and said.count("There is no word in the document") == 1

    if missing() is None or os.environ.get("CI"):
        with serving(project, "films", "--version", "2") as server, browser() as driver:
            driver.get(server.page.replace("//", f"//reread:{server.password}@") + "/health")
            driver.get(server.page)
            waiting = WebDriverWait(driver, 30)
            waiting.until(lambda driver: "version 2" in driver.find_element("id", "name").text)
            driver.find_element("id", "input").send_keys(texts[0])
            driver.find_element("tag name", "button").click()
            (shown,) = waiting.until(lambda driver: driver.find_elements("id", "result"))
            assert float(shown.text) == pytest.approx(high, rel=1e-5) and not driver.find_element("id", "error").text


def test_a_text_in_the_column_of_numbers_is_refused(project):
    (project.directory / "films.csv").write_text("review,score\nfine,3\nbad,three\n")
    command = ("data", "add", "films.csv", "--label", "score", "--task", "regression")
    refused = project.run("python", "-m", "reread", *command, code=2)
    assert "line 3, column 'score': 'three' is no number" in refused.stderr
    assert not (project.directory / "data/films").exists()
