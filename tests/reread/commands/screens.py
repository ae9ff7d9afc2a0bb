"""Pictures of MLflow's, Prefect's and DVC's pages for docs/, of an experiment that was run in the current folder.

python -m tests.reread.commands.screens
python -m tests.reread.commands.screens --experiment tiny

Writes docs/mlflow-*.png, docs/prefect-*.png and docs/dvc-plots.png. DVC's page is of the published results of the
default experiment.
"""

import argparse
import base64
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowFilter, FlowRunFilter
from prefect.client.schemas.sorting import ArtifactSort, FlowRunSort
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from reread.commands.servers import Servers, client_of, client_settings, mlflow_server, module_command, prefect_server
from reread.evaluation.vega import script
from reread.storage.errors import InputError, command
from reread.storage.secret import project_auth
from reread.tracking.pages import experiment_page
from reread.tracking.registry import registered_name
from reread.tracking.runs import open_tracking
from reread.tracking.views import CHARTS, VARIANTS
from tasks.progress import artifact_key
from tests.reread.tracking.comparison import browser, free_port, missing

SECONDS = 180
WIDTH, NARROW = 1400, 1000


def take(driver: webdriver.Chrome, picture: Path, height: int, width: int = WIDTH) -> None:
    """Save the page as it is in a window of this size, once it has stopped to change."""
    driver.set_window_size(width, height)
    # The buttons that a chart shows while a mouse is over it.
    hidden = "document.head.insertAdjacentHTML('beforeend', '<style>.modebar { display: none }</style>')"
    driver.execute_script(hidden)
    before, until = b"", time.monotonic() + SECONDS
    while (now := driver.get_screenshot_as_png()) != before and time.monotonic() < until:
        before = now
        time.sleep(1)
    picture.write_bytes(now)


def open_page(driver: webdriver.Chrome, address: str, shown: Callable[[str], bool]) -> None:
    """Open a page and wait until its text is as ``shown`` wants it."""
    driver.get("about:blank")
    driver.get(address)
    WebDriverWait(driver, SECONDS).until(lambda page: shown(page.find_element(By.TAG_NAME, "body").text))
    for button in driver.find_elements(By.CSS_SELECTOR, '[aria-label="Close"]'):
        if button.is_displayed():
            button.click()


def mlflow_pictures(driver: webdriver.Chrome, server: str, experiment: str, folder: Path) -> None:
    """The table of variants, the charts by variant, and the page of a champion."""
    tracking = open_tracking()
    number, variants = tracking.experiment(experiment), list(tracking.parents(experiment))
    page = experiment_page(server, number, VARIANTS)
    open_page(driver, page, lambda text: all(variant in text for variant in variants) and "verdict" in text)
    take(driver, folder / "mlflow-variants.png", 800)
    page = experiment_page(server, number, CHARTS, charts=True)
    open_page(driver, page, lambda text: "validation_loss" in text and f"Group: {variants[0]}" in text)
    take(driver, folder / "mlflow-charts.png", 1000)
    names = sorted({run.data.params["data"] for run in tracking.client.search_runs([number], "tags.variant_key != ''")})
    name = registered_name(names[0])
    version = tracking.client.get_model_version_by_alias(name, "champion").version
    page = f"{server}/#/models/{name}/versions/{version}?workflowType=machine_learning"
    open_page(driver, page, lambda text: "## Limits" in text or "Limits" in text)
    take(driver, folder / "mlflow-model.png", 900)


def prefect_pictures(driver: webdriver.Chrome, server: str, experiment: str, folder: Path) -> None:
    """The last run of the pipeline with its log, and its table of variants."""
    with client_settings(client_of(urlsplit(server).port)), get_client(sync_client=True) as client:
        flow_runs = client.read_flow_runs(
            flow_filter=FlowFilter(name={"any_": ["pipeline"]}),
            flow_run_filter=FlowRunFilter(name={"any_": [experiment]}, state={"type": {"any_": ["COMPLETED"]}}),
            sort=FlowRunSort.START_TIME_DESC,
            limit=1,
        )
        key = ArtifactFilterKey(any_=[artifact_key(experiment, "variants")])
        tables = client.read_artifacts(artifact_filter=ArtifactFilter(key=key), sort=ArtifactSort.CREATED_DESC, limit=1)
    if not flow_runs:
        raise InputError(f"Prefect has no finished run of '{experiment}': `reread run --experiment {experiment}`")
    page = f"{server}/runs/flow-run/{flow_runs[0].id}"
    open_page(driver, page, lambda text: "Beginning flow run" in text and "Completed" in text)
    take(driver, folder / "prefect-run.png", 1100)
    open_page(driver, f"{server}/artifacts/artifact/{tables[0].id}", lambda text: "parameters" in text)
    take(driver, folder / "prefect-variants.png", 620)


def dvc_picture(driver: webdriver.Chrome, folder: Path) -> None:
    """The page of ``dvc plots show``."""
    script()  # writes .cache/vega.js
    subprocess.run(module_command("dvc", "plots", "show"), check=True, stdout=subprocess.DEVNULL)
    open_page(driver, Path("dvc_plots/index.html").resolve().as_uri(), lambda text: "is missing" not in text)
    take(driver, folder / "dvc-plots.png", 1000, NARROW)


@command
def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.reread.commands.screens", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--experiment", default="default")
    parser.add_argument("--to", type=Path, default=Path("docs"))
    arguments = parser.parse_args()
    if missing():
        raise InputError(missing())
    mlflow, prefect = free_port(), free_port()
    with Servers() as servers, browser() as driver:
        servers.start(mlflow_server(mlflow), prefect_server(prefect))
        # A browser that has sent the password once sends it again.
        driver.get(f"http://{project_auth()}@127.0.0.1:{mlflow}/health")
        driver.get(f"http://127.0.0.1:{prefect}/robots.txt")
        encoded = base64.b64encode(project_auth().encode()).decode()
        driver.execute_script("localStorage.setItem('prefect-password', arguments[0])", encoded)
        mlflow_pictures(driver, f"http://127.0.0.1:{mlflow}", arguments.experiment, arguments.to)
        prefect_pictures(driver, f"http://127.0.0.1:{prefect}", arguments.experiment, arguments.to)
        dvc_picture(driver, arguments.to)


if __name__ == "__main__":
    main()
