"""MLflow: an experiment of a tracking server or database, or the CSV that `mlflow runs` or its UI exports.

    sqlite:///mlflow.db#EXPERIMENT    http://127.0.0.1:5000#EXPERIMENT

A run is a unit: its seed is the parameter ``seed`` where there is one, else its id. The columns are those of
``mlflow.search_runs``: params.NAME, tags.NAME, metrics.NAME (the last value). The arm is named by ``--column``.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from reread.importers import Source, Table, library, table
from reread.storage.errors import InputError, nearest

SCHEMES = ("http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
# The CSV of the UI has no prefixes.
RUN_ID, UI_RUN_ID = "run_id", "Run ID"
SEED, FINISHED = "seed", "FINISHED"


def recognises(source: Source) -> bool:
    if source.is_address:
        return source.text.partition("://")[0].partition("+")[0] in SCHEMES
    names = table.header(source)
    from_ui = UI_RUN_ID in names and "Source Type" in names
    return from_ui or (RUN_ID in names and any(name.startswith("metrics.") for name in names))


def read(source: Source) -> Table:
    """Return one row per run."""
    columns = _from_server(source) if source.is_address else table.columns(source)
    if UI_RUN_ID in columns:
        return Table(columns, {"seed": SEED if SEED in columns else UI_RUN_ID}, finished=("Status", FINISHED))
    parameter = f"params.{SEED}"
    seed = parameter if parameter in columns else RUN_ID
    return Table(columns, {"seed": seed}, prefix="metrics.", finished=("status", FINISHED))


def _from_server(source: Source) -> dict[str, list[Any]]:
    address, _, name = source.text.partition("#")
    scheme, _, file = address.partition(":///")
    # MLflow would make an empty database.
    if scheme == "sqlite" and not Path(file).is_file():
        raise InputError(f"{file} does not exist: give the address of an MLflow database, as sqlite:///mlflow.db#NAME")
    # A server that is not there is asked for minutes otherwise.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    mlflow = library("mlflow", "MLflow's servers")
    client = mlflow.MlflowClient(address)
    try:
        experiment = client.get_experiment_by_name(unquote(name)) if name else None
        if experiment is None:
            known = [each.name for each in client.search_experiments()]
            raise InputError(f"{address} has no experiment '{unquote(name)}' (after #): {nearest(name, known)}")
        runs, token = [], None
        while token != "":
            page = client.search_runs([experiment.experiment_id], page_token=token)
            runs += page
            token = page.token or ""
    except mlflow.exceptions.MlflowException as error:
        message = str(error).partition("\n")[0]
        raise InputError(f"{address} cannot be read ({message}): start the server, or give its address") from None
    if not runs:
        raise InputError(f"the experiment '{unquote(name)}' of {address} has no run")
    rows = [
        {
            RUN_ID: run.info.run_id,
            "status": run.info.status,
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
            **{f"metrics.{key}": value for key, value in run.data.metrics.items()},
        }
        for run in runs
    ]
    return {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
