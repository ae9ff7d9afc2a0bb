"""Open MLflow's and Prefect's pages on what this project has, until Ctrl-C.

python -m commands.ui [--mlflow-port 5000] [--prefect-port 4200]

A server that the environment names (MLFLOW_TRACKING_URI, PREFECT_API_URL) is not started but only told.
"""

import argparse
import contextlib
import os
from collections.abc import Iterator

from rich.console import Console

from commands.servers import Server, Servers, mlflow_server, prefect_server
from storage.errors import command
from tracking.runs import open_tracking, tracking_uri


def runs_pages(mlflow: str) -> Iterator[tuple[str, str]]:
    """Each experiment with the address of its runs: MLflow's first page shows what traces language models."""
    for experiment in open_tracking().client.search_experiments():
        if experiment.name != "Default":  # MLflow's own, which has no runs of ours
            yield (
                experiment.name,
                f"{mlflow}/#/experiments/{experiment.experiment_id}/runs?workflowType=machine_learning",
            )


@command
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m commands.ui", description="Open MLflow's and Prefect's pages.")
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--prefect-port", type=int, default=4200)
    arguments = parser.parse_args()
    console = Console(highlight=False, soft_wrap=True)

    pages: dict[str, str] = {}
    ours: list[Server] = []
    if tracking_uri().startswith(("http://", "https://")):
        pages["MLflow"] = f"{tracking_uri()}  (MLFLOW_TRACKING_URI)"
    else:
        ours.append(mlflow_server(arguments.mlflow_port))
    if os.environ.get("PREFECT_API_URL"):
        pages["Prefect"] = f"{os.environ['PREFECT_API_URL'].removesuffix('/api')}  (PREFECT_API_URL)"
    else:
        ours.append(prefect_server(arguments.prefect_port))

    with Servers() as servers, contextlib.suppress(KeyboardInterrupt):
        with console.status(f"starting {' and '.join(server.name for server in ours)} ..."):
            servers.start(*ours)
        for name, page in {**pages, **{server.name: server.page for server in ours}}.items():
            console.print(f"{name:<8} {page}")
            if name == "MLflow" and name not in pages:
                for experiment, address in runs_pages(page):
                    console.print(f"         {experiment}: {address}")
        console.print("Ctrl-C stops what was started here." if servers.running else "Started elsewhere: nothing to do.")
        servers.watch()


if __name__ == "__main__":
    main()
