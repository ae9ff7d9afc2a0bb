"""MLflow: an experiment of a tracking server, database or folder, or the CSV that `mlflow runs` or its UI exports.

    sqlite:///mlflow.db#EXPERIMENT    http://127.0.0.1:5000#EXPERIMENT    file:mlruns#EXPERIMENT

A run is a unit: its seed is the parameter ``seed`` where there is one, else its id. The columns are those of
``mlflow.search_runs``: params.NAME, tags.NAME, metrics.NAME (the last value). The arm is named by ``--column``.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from reread.importers import Source, Table, library, table
from reread.storage.errors import InputError, nearest

SCHEMES = ("file", "http", "https", "sqlite", "postgresql", "mysql", "mssql", "databricks")
# The CSV of the UI has no prefixes.
RUN_ID, UI_RUN_ID = "run_id", "Run ID"
SEED, FINISHED = "seed", "FINISHED"


def recognises(source: Source) -> bool:
    if source.is_address:
        return source.text.partition(":")[0].partition("+")[0] in SCHEMES
    if source.path.is_dir():
        return is_store(source.path)
    names = table.header(source)
    from_ui = UI_RUN_ID in names and "Source Type" in names
    return from_ui or (RUN_ID in names and any(name.startswith("metrics.") for name in names))


def is_store(folder: Path) -> bool:
    """Return whether a folder has experiments: each is a folder with a meta.yaml, and so is each run in one."""
    return any(folder.glob("*/meta.yaml")) and not (folder / "meta.yaml").exists()


def read(source: Source) -> Table:
    """Return one row per run."""
    is_stored = source.is_address or source.path.is_dir()
    columns = _from_store(source) if is_stored else table.columns(source)
    if UI_RUN_ID in columns:
        return Table(columns, {"seed": SEED if SEED in columns else UI_RUN_ID}, finished=("Status", FINISHED))
    parameter = f"params.{SEED}"
    seed = parameter if parameter in columns else RUN_ID
    runs = RUN_ID if is_stored else ""
    return Table(columns, {"seed": seed}, prefix="metrics.", finished=("status", FINISHED), runs=runs)


def _from_store(source: Source) -> dict[str, list[Any]]:
    address, _, name = source.text.partition("#")
    if not source.is_address:
        address, name = source.path.resolve().as_uri(), ""
    scheme, _, file = address.partition(":")
    # MLflow would make an empty database or folder.
    if scheme == "sqlite" and not Path(file := file.removeprefix("///")).is_file():
        raise InputError(f"{file} does not exist: give the address of an MLflow database, as sqlite:///mlflow.db#NAME")
    folder = Path(url2pathname(urlsplit(address).path)) if scheme == "file" else None
    if folder is not None and not is_store(folder):
        raise InputError(f"{source.text} is no folder of MLflow: give one that has experiments, as file:mlruns#NAME")
    # A server that is not there is asked for minutes otherwise, and a folder is not read.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow = library("mlflow", "MLflow's servers")
    try:
        client = mlflow.MlflowClient(address)
        experiment = client.get_experiment_by_name(unquote(name)) if name else None
        if experiment is None:
            known = [each.name for each in client.search_experiments()]
            if not name:
                raise InputError(f"{source.text} names no experiment: write {address}#NAME, {nearest(name, known)}")
            raise InputError(f"{address} has no experiment '{unquote(name)}' (after #): {nearest(name, known)}")
        runs, token = [], None
        while token != "":
            page = client.search_runs([experiment.experiment_id], page_token=token)
            runs += page
            token = page.token or ""
    except InputError:
        raise
    except Exception as error:  # whatever MLflow, its database or its server raise
        message = str(error).partition("\n")[0]
        todo = "start the server, or give its address"
        if folder is not None:
            todo = f"convert it by mlflow migrate-filestore --source {folder} --target sqlite:///mlflow.db"
        raise InputError(f"{address} cannot be read ({message}): {todo}") from None
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
