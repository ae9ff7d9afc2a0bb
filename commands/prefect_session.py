"""A Prefect server for the flows that a person starts at a terminal."""

import atexit
import contextlib
import os
import socket
from collections.abc import Iterator

from prefect.settings import PREFECT_API_URL, temporary_settings

from commands.servers import HOST, Servers, api_url, prefect_server, refuse_silent
from tasks.progress import say


@contextlib.contextmanager
def prefect_session() -> Iterator[None]:
    """Flows inside the block report to PREFECT_API_URL or, where there is none, to a server of this process.

    Prefect would start a temporary one itself, but that one outlives a flow that is killed; ours ends with us,
    however we end. Both keep what they know in the same database, so that `make ui` shows these runs later.
    InputError where PREFECT_API_URL does not answer.
    """
    given = os.environ.get("PREFECT_API_URL")
    if given:
        refuse_silent(given)
        yield
        return
    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    servers = Servers().__enter__()
    # Prefect's threads deliver their last logs and events when the interpreter ends, and wait for ever for a server
    # that is gone: it is stopped after them.
    atexit.register(servers.__exit__)
    servers.start(prefect_server(port))
    say(f"Prefect: http://{HOST}:{port} while this runs")
    with temporary_settings({PREFECT_API_URL: api_url(port)}):
        yield
