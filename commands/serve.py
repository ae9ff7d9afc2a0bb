"""Deploy the flows and run what is triggered, until Ctrl-C: Prefect's server, a pool, the deployments, a worker.

python -m commands.serve [--prefect-port 4200] [--limit 1]

Where PREFECT_API_URL names a server, that one is used and none is started.
"""

import argparse
import contextlib
import os
import sys

from rich.console import Console

from commands.servers import ServerFailed, Servers, api_url, deploy, prefect_server, worker
from storage.errors import InputError, command


@command
def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m commands.serve", description="Deploy the flows and run them.")
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--limit", type=int, default=1, help="flow runs at a time (each trains several at a time)")
    arguments = parser.parse_args()
    if arguments.limit < 1:
        raise InputError(f"--limit {arguments.limit}: give a whole number of flow runs from 1 up")
    console = Console(highlight=False, soft_wrap=True)
    given = os.environ.get("PREFECT_API_URL")
    api = given or api_url(arguments.prefect_port)

    try:
        with Servers() as servers, contextlib.suppress(KeyboardInterrupt):
            if not given:
                with console.status("starting Prefect's server ..."):
                    servers.start(prefect_server(arguments.prefect_port))
            with console.status("deploying ..."):
                deploy(api)
            servers.start(worker(api, arguments.limit))
            prefect = f"PREFECT_API_URL={api} .venv/bin/prefect"
            console.print(
                f"Prefect  {api.removesuffix('/api')}\n\n"
                "In another terminal:\n"
                f"  {prefect} deployment run pipeline/default --watch\n"
                f"  {prefect} deployment run pipeline/default -p experiment=tiny --watch\n"
                f"  {prefect} deployment run train/variant -p variants='[\"han\"]' --watch\n"
                f"  {prefect} deployment ls\n\n"
                "Ctrl-C stops the worker, and the server if it was started here.",
                markup=False,
            )
            servers.watch()
    except ServerFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    main()
