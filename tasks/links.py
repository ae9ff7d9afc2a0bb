"""Addresses of an experiment's pages in MLflow and Prefect, for its report.

Without servers of the user's own (MLFLOW_TRACKING_URI, PREFECT_API_URL) they are those of `reread ui` on its default
ports, which shows what this folder's databases have.
"""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from prefect.runtime import flow_run

from evaluation.report import Links
from tracking.runs import Tracking

HOST = "http://127.0.0.1"
# The defaults of commands/ui.py.
MLFLOW_PORT, PREFECT_PORT = 5000, 4200


def links(tracking: Tracking, experiment: str, run_ids: Mapping[str, str]) -> Links:
    """Return the links of an experiment's report; ``run_ids``: MLflow's id of each run by its key."""
    server = tracking.uri if tracking.uri.startswith("http") else f"{HOST}:{MLFLOW_PORT}"
    base = f"{server.rstrip('/')}/#/experiments/{tracking.experiment(experiment)}"
    pages = {"Runs in MLflow": base}
    if address := prefect_address():
        pages["Flow in Prefect"] = address
    return Links(pages, {key: f"{base}/runs/{run_id}" for key, run_id in run_ids.items()})


def prefect_address() -> str | None:
    """Return the page of the flow run that this process is in, or None outside a flow."""
    if not (flow_run.id and flow_run.ui_url):
        return None
    if os.environ.get("PREFECT_API_URL"):
        return flow_run.ui_url
    return f"{HOST}:{PREFECT_PORT}{urlsplit(flow_run.ui_url).path}"
