"""Deploy the flows and run what is triggered.

reread serve
reread serve --prefect-port 4201 --limit 2
reread serve --service

Where PREFECT_API_URL names a server, that one is used and none is started.

--service starts what a team shares: Prefect's and MLflow's servers on PostgreSQL, with passwords, as service.env says
(`reread service init` writes it). It starts no worker: each machine that trains runs `reread serve`.
"""

import contextlib
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from reread.commands.servers import (
    ServerFailed,
    Servers,
    client_of,
    client_settings,
    deploy,
    given_client,
    login,
    prefect_server,
    worker,
)
from reread.commands.service_settings import SETTINGS, Settings
from reread.storage.errors import InputError
from reread.storage.secret import SECRET


def command(
    prefect_port: Annotated[
        int, typer.Option("--prefect-port", min=1, max=65535, metavar="PORT", help="The port of Prefect's page.")
    ] = 4200,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Flow runs at a time (each trains several).")] = 1,
    service: Annotated[bool, typer.Option("--service", help="Start the servers of a team.")] = False,
    settings: Settings = SETTINGS,
) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if service:
        if (prefect_port, limit) != (4200, 1):
            raise InputError(f"--prefect-port and --limit are for a worker: the ports of --service are in {settings}")
        serve_team(settings, console)
        return
    given = given_client()
    client = given or client_of(prefect_port)
    with Servers() as servers, contextlib.suppress(KeyboardInterrupt):
        if not given:
            with console.status("starting Prefect's server ..."):
                servers.start(prefect_server(prefect_port))
        with console.status("deploying ..."):
            deploy(client)
            close_what_was_killed(client, console)
        servers.start(worker(client, limit))
        api = client["PREFECT_API_URL"]
        console.print(
            f"Prefect  {api.removesuffix('/api')}{'' if given else f'  (log in with {login(console)})'}\n\n"
            "In another terminal:\n"
            f"  export {'' if given else f'$(cat {SECRET}) '}PREFECT_API_URL={api}\n"
            "  .venv/bin/prefect deployment run pipeline/default --watch\n"
            "  .venv/bin/prefect deployment run pipeline/default -p experiment=tiny --watch\n"
            "  .venv/bin/prefect deployment run train/variant -p variants='[\"han\"]' --watch\n"
            "  .venv/bin/prefect deployment run pipeline/default -p experiment=tiny "
            "-p overrides='[\"training.learning_rate=0.03\"]' --watch\n"
            "  .venv/bin/prefect deployment ls\n\n"
            "Ctrl-C stops the worker, and the server if it was started here.",
            markup=False,
        )
        servers.watch()


def close_what_was_killed(client: dict[str, str], console: Console) -> None:
    """Close in Prefect and MLflow what an earlier worker left running when it was killed."""
    from reread.planning.environment import read_environment
    from reread.tracking.recording import settle
    from tasks.liveness import close_dead_flow_runs

    with client_settings(client):
        close_dead_flow_runs(console.print)
    settle(read_environment(), console.print)


def serve_team(file: Path, console: Console) -> None:
    """Run the servers of the settings in ``file`` until a signal; ServerFailed where one ends or its checks fail."""
    from reread.commands.databases import create_missing
    from reread.commands.service import checks
    from reread.commands.service_servers import service_servers
    from reread.commands.service_settings import read_settings

    settings = read_settings(file)
    create_missing(settings)
    with Servers() as servers, contextlib.suppress(KeyboardInterrupt):
        servers.start(*service_servers(settings))
        failed = [check for check in checks(settings) if not check.passed]
        if failed:
            raise ServerFailed(f"{failed[0].name}: {failed[0].detail}")
        console.print(f"Prefect  {settings.prefect_page}\nMLflow   {settings.mlflow_page}\n")
        if servers.running:
            console.print("Each has a password. Ctrl-C stops both.")
        else:
            console.print("Another terminal runs them: nothing to do.")
        servers.watch()
