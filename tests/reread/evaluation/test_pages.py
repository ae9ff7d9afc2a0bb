"""The report and the page of attention in a real browser: what they show, do and fetch, and that all can read them."""

import os

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from reread.evaluation.report import Links, evaluate_experiment
from reread.storage.files import read_json
from tests.reread.evaluation.pages import NARROW, accessibility_faults, compare_networks, open_page, too_wide
from tests.reread.tracking.comparison import browser, missing

pytestmark = pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))
SEEDS = (0, 1, 2)
TOPICS = [f"topic {number}" for number in range(20)]


@pytest.fixture
def report(tools, tmp_path, text_data):
    """A report on documents by two networks that attend, and on images with 20 labels."""
    topics = tools["write_image_data"](
        tmp_path / "prepared" / "topics", {"train": 4, "validation": 30, "test": 40}, TOPICS, "multi-label"
    )
    variants = {
        "han": {"model": "han", "data": "corpus"},
        "flat": {"model": "gru_flat", "data": "corpus"},
        "dense": {"model": "densenet", "data": "topics"},
    }
    places = {"corpus": text_data, "topics": topics}
    records = []
    for name, about in variants.items():
        place = places[about["data"]]
        for seed in SEEDS:
            record = tools["write_record"](tmp_path / "runs", name, about["model"], about["data"], place, seed, 2.0)
            settings = {"pooling": "attention"} if name == "flat" else {}
            tools["add_weights"](
                record.run_directory, about["model"], read_json(place / "prepared.json"), seed, **settings
            )
            records.append(record)
    pair = {"name": "p", "claim": "c", "source": "s", "treatment": "han", "control": "flat", "metric": "accuracy"}
    experiment = {
        "title": "Which reads better?", "variants": variants, "seeds": list(SEEDS), "comparisons": [pair],
        "equivalence_margin": 0.02, "evaluate_on": "test",
    }  # fmt: skip
    links = Links({"Runs in MLflow": "http://127.0.0.1:5000/#/experiments/1"}, {"han-0": "http://127.0.0.1:5000/#/run"})
    command, environment = "reread run --experiment trial", {"device": "CPU", "commit": "0123456789" * 4}
    evaluate_experiment(experiment, records, {}, tmp_path / "report", command, environment, links=links)
    return tmp_path / "report"


def test_the_report_and_the_page_of_attention(report):
    with browser() as driver:
        open_page(driver, report / "report.html")
        charts = driver.find_elements(By.CSS_SELECTOR, ".chart canvas")
        assert len(charts) == len(driver.find_elements(By.CSS_SELECTOR, ".chart")) >= 9
        assert accessibility_faults(driver) == []
        # Vega-Lite says of a chart with a row per variant that its height is fixed.
        assert [entry for entry in driver.get_log("browser") if "discrete height" not in entry["message"]] == []
        assert driver.execute_script("return performance.getEntriesByType('resource').length") == 0
        # What to use is on the first screen.
        use = driver.find_element(By.CSS_SELECTOR, ".use")
        assert use.text.startswith("On corpus use ") and use.rect["y"] + use.rect["height"] < 1000
        links = [link.get_attribute("href") for link in driver.find_elements(By.CSS_SELECTOR, 'a[target="_blank"]')]
        assert links == ["http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/run"]
        assert "reread run --experiment trial" in driver.find_element(By.CSS_SELECTOR, "header pre").text
        sort_and_filter(driver)
        assert "epoch" in tooltip(driver, "curves-1", "\nseed ")

        open_page(driver, report / "report.html", dark=True, width=NARROW)
        assert not too_wide(driver)
        assert accessibility_faults(driver) == []

        open_page(driver, report / "attention.html")
        choose_documents(driver)
        assert accessibility_faults(driver) == []
        open_page(driver, report / "attention.html", dark=True, width=NARROW)
        assert not too_wide(driver)
        assert accessibility_faults(driver) == []


def sort_and_filter(driver):
    """The table of classes, by a score, both ways, by its keyboard; then filtered by a class's name."""
    table = driver.find_element(By.CSS_SELECTOR, '[aria-label="Each class, topics"] table')
    head = table.find_elements(By.CSS_SELECTOR, "thead th")[2]

    def values():
        cells = table.find_elements(By.CSS_SELECTOR, "tbody tr td:nth-child(3)")
        return [float(cell.get_attribute("data-value")) for cell in cells]

    assert len(values()) == len(TOPICS) and head.get_attribute("aria-sort") is None
    for order in ("descending", "ascending"):
        head.find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
        assert head.get_attribute("aria-sort") == order
        assert values() == sorted(values(), reverse=order == "descending")
    field = driver.find_element(By.CSS_SELECTOR, '[aria-label="Filter rows: Each class, topics"]')
    field.send_keys("topic 19")
    shown = [row.text for row in table.find_elements(By.CSS_SELECTOR, "tbody tr") if row.is_displayed()]
    assert len(shown) == 1 and shown[0].startswith("topic 19")


def tooltip(driver, name, word) -> str:
    """The tooltip of a chart at a point that has a word, near its middle first; empty where nothing has it."""
    chart = driver.find_element(By.CSS_SELECTOR, f'[data-chart="chart-{name}"] canvas')
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    place = driver.execute_script("return arguments[0].getBoundingClientRect()", chart)
    middle = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
    for across in sorted(range(-int(place["width"]) // 2 + 60, int(place["width"]) // 2, 12), key=abs):
        for down in range(-60, 80, 10):
            moved = {"type": "mouseMoved", "x": middle[0] + across, "y": middle[1] + down}
            driver.execute_cdp_cmd("Input.dispatchMouseEvent", moved)
            shown = driver.find_elements(By.CSS_SELECTOR, "#vg-tooltip-element.visible")
            if shown and word in shown[0].text:
                return shown[0].text
    return ""


def choose_documents(driver):
    """Every choice of the page of attention, counted from the documents that it shows."""

    def shown():
        return driver.find_elements(By.CSS_SELECTOR, "article.document")

    def choose(name, value):
        Select(driver.find_element(By.ID, name)).select_by_value(value)

    everything = len(shown())
    networks = [option.get_attribute("value") for option in Select(driver.find_element(By.ID, "network")).options]
    assert everything > 30 and networks == ["han", "flat"]
    assert len(Select(driver.find_element(By.ID, "seed")).options) == len(SEEDS)
    choose("answer", "right")
    right = len(shown())
    assert f"{right} of {everything} are classified right" in driver.find_element(By.ID, "count").text
    choose("answer", "wrong")
    assert len(shown()) == everything - right
    choose("answer", "")
    choose("class", "b<i>")
    assert 0 < len(shown()) < everything
    assert all("true b<i>" in element.text for element in shown())
    compare_networks(driver)
    titles = [element.text for element in shown()[0].find_elements(By.TAG_NAME, "h2")]
    assert len(titles) == 2 and titles[0].startswith("han, seed") and titles[1].startswith("flat, seed")
    word = shown()[0].find_element(By.CSS_SELECTOR, ".sentence p span")
    assert 0 <= float(word.get_attribute("title")) <= 1
