"""Addresses of MLflow's pages. ``server`` is its address, or empty for a link from one page to another."""

# Where `reread ui` serves a database that has no server of its own.
UI = "http://127.0.0.1:5000"


def server_of(tracking_uri: str) -> str:
    """Return the address of the server that shows the runs of a tracking URI."""
    return tracking_uri.rstrip("/") if tracking_uri.startswith(("http://", "https://")) else UI


def experiment_page(server: str, experiment_id: str, view: str = "", charts: bool = False) -> str:
    """Return the page of an experiment's training runs, or one of its views (reread/tracking/views.py)."""
    shared = f"&viewStateShareKey={view}" if view else ""
    mode = "&compareRunsMode=CHART" if charts else ""
    return f"{_root(server)}experiments/{experiment_id}/runs?workflowType=machine_learning{mode}{shared}"


def run_page(server: str, experiment_id: str, run_id: str, artifact: str = "") -> str:
    """Return the page of a run, or of one of its artifacts."""
    page = f"{_root(server)}experiments/{experiment_id}/runs/{run_id}"
    return f"{page}/artifacts/{artifact}" if artifact else page


def _root(server: str) -> str:
    return f"{server}/#/" if server else "#/"
