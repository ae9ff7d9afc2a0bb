"""The report and the page of attention in headless Chromium, for their tests and for the pictures in docs/.

python -m tests.reread.evaluation.pages    # docs/report*.png of results/default, docs/attention.png of reports/default
"""

import argparse
import base64
import tempfile
import time
from pathlib import Path

import pandas as pd
from axe_core_python.base import AXE_SCRIPT
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from reread.evaluation.attention import PAGE as ATTENTION
from reread.evaluation.report import columns, report_page, settings_of_set
from reread.planning.experiment import load_experiment
from reread.storage.errors import InputError, command
from reread.storage.files import read_json
from tests.reread.tracking.comparison import browser, missing

WIDE, NARROW = 1150, 390
SECONDS = 60
# Of these a published experiment has the tables that it needs.
TABLES = ("curves", "calibration", "confusion", "betas", "differences")


def published_report(results: Path, folder: Path) -> Path:
    """Write report.html of published results to ``folder`` and return it.

    It lacks what results/ does not keep: times, attention, and the data's lengths.
    """
    metrics, plan = read_json(results / "metrics.json"), read_json(results / "plan.json")
    order = list(load_experiment(plan["name"]).variants)
    metrics["variants"] = {name: metrics["variants"][name] for name in order}
    # Classes and labels are names, also where they look like numbers or are empty.
    names = dict.fromkeys(("label", "actual", "predicted"), str)
    there = {name: results / f"{name}.csv" for name in TABLES if (results / f"{name}.csv").is_file()}
    tables = {name: pd.read_csv(path, dtype=names) for name, path in there.items()}
    tables["confusion"]["label"] = tables["confusion"]["label"].fillna("")
    sets = []
    for data in dict.fromkeys(metrics["variants"][name]["data"] for name in order):
        description = read_json(results.parent / "preprocess" / data / "prepared.json")
        settings_by_variant = {
            name: settings_of(plan["variants"][name]) for name in order if plan["variants"][name]["data"] == data
        }
        keys = sorted(set().union(*settings_by_variant.values()))
        settings = {key: {name: own.get(key) for name, own in settings_by_variant.items()} for key in keys}
        about = {"name": data, "description": description, "lengths": None}
        sets.append(about | settings_of_set(settings) | columns(data, metrics))
    judged, command = read_json(results / "verdicts.json"), f"reread run --experiment {plan['name']}"
    warnings = judged.get("warnings", [])
    page = report_page(plan, metrics, judged["verdicts"], tables, sets, command=command, warnings=warnings)
    (folder / "report.html").write_text(page, encoding="utf-8")
    return folder / "report.html"


def settings_of(variant: dict) -> dict:
    """Return the settings of a planned variant by name."""
    parts = ("preprocessing", "network", "training")
    flat = {f"{part}.{name}": value for part in parts for name, value in variant.get(part, {}).items()}
    return {"model": variant["model"], **flat}


def open_page(driver: webdriver.Chrome, page: Path, dark: bool = False, width: int = WIDE) -> None:
    """Open a page in light or dark, as wide as given, and wait until its charts are drawn."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < WIDE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    driver.get(page.resolve().as_uri())
    until = time.monotonic() + SECONDS
    while driver.find_elements(By.CSS_SELECTOR, ".chart") and not driver.execute_script(
        "return document.documentElement.dataset.drawn"
    ):
        if time.monotonic() > until:
            raise RuntimeError(f"the charts of {page} are not drawn: {driver.get_log('browser')}")
        time.sleep(0.1)


def accessibility_faults(driver: webdriver.Chrome) -> list[str]:
    """Return what axe-core finds in the page, everything that is folded unfolded."""
    driver.execute_script("document.querySelectorAll('details').forEach((details) => { details.open = true; })")
    driver.execute_script(AXE_SCRIPT)
    results = driver.execute_async_script("axe.run().then(arguments[0])")
    return [f"{violation['id']}: {violation['nodes'][0]['html'][:200]}" for violation in results["violations"]]


def too_wide(driver: webdriver.Chrome) -> bool:
    """Return whether the page must be scrolled sideways."""
    return driver.execute_script("return Math.max(document.documentElement.scrollWidth, innerWidth) > screen.width")


def take_picture(driver: webdriver.Chrome, picture: Path, top: int = 0, bottom: int = 1000) -> None:
    """Save the page (PNG) between two heights in pixels."""
    width = driver.execute_script("return window.innerWidth")
    clip = {"x": 0, "y": top, "width": width, "height": bottom - top, "scale": 1}
    taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
    picture.write_bytes(base64.b64decode(taken["data"]))


def top_of(driver: webdriver.Chrome, section: str) -> int:
    """Return where a section of the report begins, in pixels from the top of the page."""
    return int(driver.find_element(By.ID, section).rect["y"])


def compare_networks(driver: webdriver.Chrome) -> None:
    """On the page of attention, show the last choice of network and seed beside the first."""
    for name in ("other-network", "other-seed"):
        choice = Select(driver.find_element(By.ID, name))
        choice.select_by_index(len(choice.options) - 1)


def docs_pictures(report: Path, attention: Path, folder: Path) -> None:
    """Take the pictures of docs/: verdicts, a section in dark, a telephone, and two networks side by side."""
    with browser() as driver:
        open_page(driver, report)
        take_picture(driver, folder / "report.png", 0, top_of(driver, "evidence"))
        open_page(driver, report, dark=True)
        take_picture(driver, folder / "report-dark.png", top_of(driver, "calibration"), top_of(driver, "confusion"))
        open_page(driver, report, width=NARROW)
        take_picture(driver, folder / "report-phone.png", 0, 1000)
        open_page(driver, attention)
        compare_networks(driver)
        take_picture(driver, folder / "attention.png", 0, 1000)


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reread.evaluation.pages", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--to", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if missing():
        raise InputError(missing())
    attention = Path("reports/default") / ATTENTION
    if not attention.is_file():
        raise InputError(f"{attention} is missing: `reread run --no-cache` writes it")
    with tempfile.TemporaryDirectory() as folder:
        docs_pictures(published_report(Path("results/default"), Path(folder)), attention, arguments.to)


if __name__ == "__main__":
    main()
