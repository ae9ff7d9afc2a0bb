"""Addresses of MLflow's pages: of an experiment's runs, of a run and of a report."""

from pathlib import Path

from storage.errors import InputError
from tracking.runs import REPORT, Tracking, open_tracking

# Where `reread ui` serves a database that has no server of its own.
UI = "http://127.0.0.1:5000"


def server_of(tracking: Tracking) -> str:
    """Return the address of the server that shows these runs."""
    return tracking.uri.rstrip("/") if tracking.uri.startswith(("http://", "https://")) else UI


def experiment_page(server: str, experiment_id: str) -> str:
    """Return the page of an experiment's runs, as MLflow shows training runs (and not traces of language models)."""
    return f"{server}/#/experiments/{experiment_id}/runs?workflowType=machine_learning"


def run_page(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the page of a run, or of one of its artifacts."""
    page = f"{server}/#/experiments/{experiment_id}/runs/{run_id}"
    return f"{page}/artifacts/{artifact}" if artifact else page


def report_page(experiment: str, root: Path = Path()) -> str | None:
    """Return the page of an experiment's report; None where MLflow has none or does not answer."""
    from mlflow.exceptions import MlflowException

    try:
        tracking = open_tracking(root)
        run = tracking.find(experiment, REPORT, experiment)
    except (InputError, MlflowException):
        return None
    if run is None:
        return None
    return run_page(server_of(tracking), run.info.experiment_id, run.info.run_id, "report.html")
