"""Addresses of an experiment's pages in MLflow and Prefect, for its report.

Without servers of the user's own (MLFLOW_TRACKING_URI, PREFECT_API_URL) they are those of `reread ui` on its default
ports, which shows what this folder's databases have.
"""

from collections.abc import Mapping

from reread.evaluation.report import Links
from reread.tracking.pages import server_of
from reread.tracking.runs import open_tracking
from tasks.prefect_run import flow_run_page


def links(experiment: str, run_ids: Mapping[str, str]) -> Links:
    """Return the links of an experiment's report; ``run_ids``: MLflow's id of each run by its key, as far as known."""
    base = mlflow_address(experiment) if run_ids else None
    pages = {"Runs in MLflow": base} if base else {}
    if address := flow_run_page():
        pages["Flow in Prefect"] = address
    return Links(pages, {key: f"{base}/runs/{run_id}" for key, run_id in run_ids.items()} if base else {})


def mlflow_address(experiment: str) -> str | None:
    """Return the page of an experiment's runs; None where MLflow does not answer: a report needs no links."""
    try:
        tracking = open_tracking()
        return f"{server_of(tracking.uri)}/#/experiments/{tracking.experiment(experiment)}"
    except Exception:  # whatever MLflow, its database or its server raise
        return None
