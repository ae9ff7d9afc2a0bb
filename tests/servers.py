"""Real servers in tests: a free port, a request, and a command of the project in the background."""

import base64
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import Project


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def auth_of(folder: Path) -> str:
    """USER:PASSWORD of the servers of a folder, as its secret.env has it."""
    variable, _, auth = (folder / "secret.env").read_text().strip().partition("=")
    assert variable == "PREFECT_API_AUTH_STRING"
    return auth


def call(url: str, body: object | None = None, auth: str = "", **headers: str) -> object:
    """Return the answer to a request, read as JSON where it is some; POST where there is a body."""
    data = None if body is None else json.dumps(body).encode()
    if auth:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
    request = urllib.request.Request(url, data, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as answer:
        text = answer.read()
    return json.loads(text) if text and answer.headers["Content-Type"].startswith("application/json") else text.decode()


@contextmanager
def started(project: Project, *command: str, until: str, code: int = 0) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A Python command of the project in the background, from when it says ``until``, and the file of its output.

    Afterwards it is stopped, where it still runs, and its exit code checked.
    """
    output = project.directory.parent / f"{free_port()}.txt"
    with open(output, "w") as file:
        process = subprocess.Popen(
            [sys.executable, *command],
            cwd=project.directory,
            env={**project.environment, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            while until not in output.read_text():
                assert process.poll() is None, output.read_text()
                time.sleep(0.2)
            yield process, output
        finally:
            process.terminate()
            assert process.wait(60) == code, output.read_text()
