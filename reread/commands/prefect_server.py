"""Prefect's server behind the door: python -m reread.commands.prefect_server --port 4200.

Its settings, the password among them, are variables of Prefect's in the environment. One server at a time starts on a
database: the first makes its tables.
"""

import argparse
import socket
import sys
from pathlib import Path

import uvicorn
from prefect.server.api.server import create_app
from prefect.settings import PREFECT_HOME

from reread.storage.locks import file_lock
from reread.tracking.door import Door


class OneAtATime(uvicorn.Server):
    """A server that waits until another one of its home has started."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with file_lock(Path(PREFECT_HOME.value()) / "start.lock"):
            await super().startup(sockets)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m reread.commands.prefect_server", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--name", action="append", default=[], help="by which clients reach it; repeatable")
    arguments = parser.parse_args()
    app = Door(create_app(final=True), names=arguments.name)
    server = OneAtATime(uvicorn.Config(app, arguments.host, arguments.port, log_level="warning"))
    server.run()
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
