"""Prefect's server behind the door: python -m reread.commands.prefect_server --port 4200.

Its settings, the password among them, are variables of Prefect's in the environment. One server at a time starts on a
database: the first makes its tables.
"""

import argparse
import contextlib
import socket
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import uvicorn
from prefect.server.api.server import create_app
from prefect.server.database.configurations import AioSqliteConfiguration
from prefect.server.database.dependencies import temporary_database_config
from prefect.server.utilities.database import get_dialect
from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, PREFECT_HOME
from sqlalchemy.ext.asyncio import AsyncSession, AsyncSessionTransaction

from reread.storage.locks import file_lock
from reread.tracking.door import Door


class Queued(AioSqliteConfiguration):
    """SQLite whose transactions wait for each other.

    As Prefect begins them, one that has read fails at its first write where another has written since. The client gets
    the answer 503, and tries again after two seconds.
    """

    @contextlib.asynccontextmanager
    async def begin_transaction(
        self, session: AsyncSession, with_for_update: bool = False
    ) -> AsyncGenerator[AsyncSessionTransaction]:
        async with super().begin_transaction(session, with_for_update=True) as transaction:
            yield transaction


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
    url = PREFECT_API_DATABASE_CONNECTION_URL.value()
    sqlite = get_dialect(url).name == "sqlite"
    with temporary_database_config(Queued(url)) if sqlite else contextlib.nullcontext():
        server.run()
    sys.exit(0 if server.started else 1)


if __name__ == "__main__":
    main()
