"""Start MLflow and Prefect, and print their addresses.

reread ui
reread ui --mlflow-port 5001 --prefect-port 4201

A server that the environment names (MLFLOW_TRACKING_URI, PREFECT_API_URL) is not started; its address is printed.
"""

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console

from reread.commands.servers import Server, Servers, basic_login, login, mlflow_server, prefect_server
from reread.storage.errors import InputError


def command(
    mlflow_port: Annotated[
        int, typer.Option("--mlflow-port", min=1, max=65535, metavar="PORT", help="The port of MLflow's page.")
    ] = 5000,
    prefect_port: Annotated[
        int, typer.Option("--prefect-port", min=1, max=65535, metavar="PORT", help="The port of Prefect's page.")
    ] = 4200,
) -> None:
    from reread.planning.experiment import refuse_elsewhere
    from reread.tracking.connection import DATABASE, tracking_uri

    # Elsewhere `reread claim` may have logged runs. Servers would leave files.
    if not DATABASE.exists():
        refuse_elsewhere()
    if mlflow_port == prefect_port:
        raise InputError(f"port {mlflow_port} is given to MLflow and to Prefect: choose two ports")
    console = Console(highlight=False, soft_wrap=True)

    pages: dict[str, str] = {}
    ours: list[Server] = []
    if tracking_uri().startswith(("http://", "https://")):
        pages["MLflow"] = f"{tracking_uri()}  (MLFLOW_TRACKING_URI)"
    else:
        ours.append(mlflow_server(mlflow_port))
    if os.environ.get("PREFECT_API_URL"):
        pages["Prefect"] = f"{os.environ['PREFECT_API_URL'].removesuffix('/api')}  (PREFECT_API_URL)"
    else:
        ours.append(prefect_server(prefect_port))

    with Servers() as servers, contextlib.suppress(KeyboardInterrupt):
        with console.status(f"starting {' and '.join(server.name for server in ours)} ..."):
            servers.start(*ours)
        for name, page in {**pages, **{server.name: server.page for server in ours}}.items():
            console.print(f"{name:<8} {page}")
            if name == "MLflow" and name not in pages:
                for experiment, address in runs_pages(page):
                    console.print(f"         {experiment}: {address}")
        if ours:
            console.print(f"Log in to Prefect's page with {login(console)}, to MLflow's with {basic_login(console)}")
        console.print(
            "Ctrl-C stops what was started here." if servers.running else "Another terminal runs them: nothing to do."
        )
        servers.watch()


def runs_pages(mlflow: str) -> Iterator[tuple[str, str]]:
    """Each experiment with the addresses of its variants and charts, or of its runs where it has no report yet."""
    from reread.tracking.pages import experiment_page
    from reread.tracking.runs import open_tracking
    from reread.tracking.views import CHARTS, TAG, VARIANTS

    for experiment in open_tracking().client.search_experiments():
        if experiment.name == "Default":  # MLflow's own, which has no runs of ours
            continue
        number = experiment.experiment_id
        if f"{TAG}{VARIANTS}" not in experiment.tags:
            yield experiment.name, experiment_page(mlflow, number)
        else:
            yield experiment.name, experiment_page(mlflow, number, VARIANTS)
            yield f"{experiment.name}, charts", experiment_page(mlflow, number, CHARTS, charts=True)
