"""MLflow's comparison of runs in headless Chromium, for the test of what it shows, and its picture in docs/.

python -m tests.reread.tracking.comparison --experiment default han gru-flat    # docs/mlflow-comparison.png

It needs the runs of the experiment in this folder's MLflow.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from reread.storage.errors import InputError, command, refuse_unknown
from reread.tracking.runs import open_tracking
from tests.servers import free_port

WIDTH, HEIGHT = 1400, 1200
MARGIN = 40
SECONDS = 60


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not found: apt-get install chromium chromium-driver" if absent else None


@contextlib.contextmanager
def server(
    database: str, artifacts: Path, log: Path, port: int | None = None, end: signal.Signals = signal.SIGTERM
) -> Iterator[str]:
    """Run MLflow's server on a port of 127.0.0.1 (default: a free one) in the block, and yield its address."""
    port = port or free_port()
    arguments = ["--backend-store-uri", database, "--artifacts-destination", str(artifacts), "--port", str(port)]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "PYTHONWARNINGS": "ignore"}
    environment.pop("MLFLOW_TRACKING_URI", None)
    with open(log, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--workers", "1", *arguments],
            cwd=log.parent,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + 2 * SECONDS
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{address}/health", timeout=5).close()
                break
            if process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"MLflow's server did not start:\n{log.read_text()[-3000:]}")
            time.sleep(0.2)
        yield address
    finally:
        # The server's workers are in its session, not only its own process.
        os.killpg(process.pid, end)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """Headless Chromium with an empty profile that is removed afterwards, and nothing of its own on the network."""
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for switch in (
            "headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-dev-shm-usage",
            "disable-background-networking", "disable-component-update", "disable-sync", "hide-scrollbars",
            f"user-data-dir={profile}", f"window-size={WIDTH},{HEIGHT}",
        ):  # fmt: skip
            options.add_argument(f"--{switch}")
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            yield driver
        finally:
            driver.quit()


def open_comparison(driver: webdriver.Chrome, address: str, experiment_id: str, run_ids: list[str]) -> None:
    """Go to the comparison of these runs and wait until its chart is drawn and nothing lies over it."""
    runs, experiments = (quote(json.dumps(ids, separators=(",", ":"))) for ids in (run_ids, [experiment_id]))
    driver.get(f"{address}/#/compare-runs?runs={runs}&experiments={experiments}&workflowType=machine_learning")
    wait = WebDriverWait(driver, SECONDS)
    wait.until(lambda page: all(run_id in page.page_source for run_id in run_ids))
    wait.until(lambda page: page.find_elements(By.CSS_SELECTOR, ".js-plotly-plot .main-svg"))
    for button in driver.find_elements(By.CSS_SELECTOR, '[aria-label="Close"]'):
        button.click()


def show_differences(driver: webdriver.Chrome) -> None:
    """Leave out the parameters and metrics in which the runs do not differ."""
    for name in ("Parameters", "Metrics"):
        driver.find_element(By.CSS_SELECTOR, f'[aria-label="{name} - Show diff only"]').click()


def shown_rows(driver: webdriver.Chrome) -> dict[str, list[str]]:
    """The rows that the page shows: the name in the first cell, and what stands beside it for each run."""
    rows = [
        [cell.text.strip() for cell in row.find_elements(By.CSS_SELECTOR, "th, td")]
        for row in driver.find_elements(By.CSS_SELECTOR, "tr")
    ]
    # The metrics are no table but two grids of placed cells, the names and the values.
    names, values = (_placed(grid) for grid in driver.find_elements(By.CSS_SELECTOR, '[role="grid"]'))
    rows += [[*names[top], *values.get(top, [])] for top in names]
    return {name: beside for name, *beside in rows if name and beside}


def _placed(grid: WebElement) -> dict[int, list[str]]:
    """The cells' texts of a grid by their distance from its top, from left to right."""
    cells = grid.find_elements(By.CSS_SELECTOR, '[role="rowgroup"] > div')
    at = {
        (int(cell.value_of_css_property("top")[:-2]), int(cell.value_of_css_property("left")[:-2])): cell
        for cell in cells
    }
    rows: dict[int, list[str]] = {}
    for top, left in sorted(at):
        rows.setdefault(top, []).append(at[top, left].text.strip())
    return rows


def take_picture(driver: webdriver.Chrome, picture: Path) -> None:
    """Save the page (PNG) from its head to its metrics: as tall as it is, without the sections that tell least."""
    for name in ("Run details", "Artifacts", "Tags"):
        last = driver.find_element(By.CSS_SELECTOR, f'[aria-label="collapse {name}"]')
        last.click()
    frame = driver.get_window_size()["height"] - driver.execute_script("return window.innerHeight")
    # Tall enough for all of it first, so that nothing is scrolled; then down to where the page ends.
    driver.set_window_size(WIDTH, 3 * HEIGHT)
    _wait_until_still(driver)
    driver.set_window_size(WIDTH, int(last.rect["y"] + last.rect["height"]) + frame + MARGIN)
    _wait_until_still(driver)
    picture.parent.mkdir(parents=True, exist_ok=True)
    driver.save_screenshot(str(picture))


def _wait_until_still(driver: webdriver.Chrome) -> None:
    """Wait until two looks, half a second apart, see the same: charts and folding sections are animated."""
    before = None
    for _ in range(SECONDS):
        now = driver.get_screenshot_as_png()
        if now == before:
            return
        before = now
        time.sleep(0.5)


def comparison_picture(database: str, experiment_id: str, run_ids: list[str], picture: Path) -> None:
    """Take a picture (PNG) of MLflow's comparison of runs: the chart, and in what they differ."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with server(database, Path(folder), log) as address, browser() as driver:
            open_comparison(driver, address, experiment_id, run_ids)
            show_differences(driver)
            take_picture(driver, picture)


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reread.tracking.comparison", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--to", type=Path, default=Path("docs"))
    parser.add_argument("variants", nargs="+", help="of which MLflow's comparison is shown")
    arguments = parser.parse_args()
    if missing():
        raise InputError(missing())
    tracking = open_tracking()
    parents = tracking.parents(arguments.experiment)
    refuse_unknown(arguments.variants, parents, f"the runs of experiment '{arguments.experiment}' in MLflow")
    run_ids = [parents[variant] for variant in arguments.variants]
    experiment_id = tracking.experiment(arguments.experiment)
    comparison_picture(tracking.uri, experiment_id, run_ids, arguments.to / "mlflow-comparison.png")


if __name__ == "__main__":
    main()
