"""Run a command of Python, of -m or -c, in a fork of an interpreter that has imported the libraries.

On two cores importing torch, MLflow and Prefect's libraries takes longer than what most tests do with them. A command
that runs in a fork is a process of its own: it has its own folder, environment, exit code and modules of the project.
It imports Prefect itself, which reads the environment when it is imported.

One interpreter (tests/interpreter.py) serves all workers of pytest-xdist. It ends when the last of them does.
"""

import atexit
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from reread.storage.locks import file_lock

INTERPRETER = Path(__file__).with_name("interpreter.py")
# Variables that differ between commands, and that no library reads when it is imported. The fork reads PYTHONPATH.
MAY_DIFFER = ("REREAD_", "PREFECT_", "MLFLOW_", "DVC_", "PYTEST_", "PYTHONPATH", "COLUMNS")
SECONDS_TO_START = 300
# Held to the end of this process: the interpreter ends with its last connection.
_HELD: list[socket.socket] = []


def fits(environment: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Return whether a command with ``environment`` may run in a fork of an interpreter that has the ``usual`` one.

    A library, or Python, may have read any other variable when it started.
    """
    names = {name for name in {*environment, *usual} if environment.get(name) != usual.get(name)}
    return all(name.startswith(MAY_DIFFER) for name in names)


def run(
    words: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    usual: Mapping[str, str],
    timeout: float = 600,
    given: bytes = b"",
) -> subprocess.CompletedProcess[str]:
    """Run ``python WORDS`` in ``folder`` and return it with its output. The first word is -m or -c.

    usual: the environment that the interpreter is started with. given: the command's input. TimeoutExpired after
    ``timeout`` seconds.
    """
    command = [sys.executable, *words]
    with (
        tempfile.TemporaryFile() if given else open(os.devnull, "r+b") as source,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as error,
    ):
        source.write(given)
        source.seek(0)
        with _connect(usual) as connection:
            request = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
            content = json.dumps(request).encode()
            files = [source.fileno(), output.fileno(), error.fileno()]
            socket.send_fds(connection, [len(content).to_bytes(4, "big")], files)
            connection.sendall(content)
            connection.settimeout(timeout)
            try:
                answer = connection.recv(64)
            except TimeoutError:
                raise subprocess.TimeoutExpired(command, timeout) from None
        assert answer, f"{INTERPRETER} ended: see {_socket().with_suffix('.log')}"
        texts = []
        for file in (output, error):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(command, int(answer), *texts)


def _socket() -> Path:
    """The interpreter's socket, one per test session."""
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return Path(tempfile.gettempdir()) / f"reread-tests-{session}" / "socket"


def _connect(usual: Mapping[str, str]) -> socket.socket:
    """Connect to the interpreter; start it where there is none."""
    path = _socket()
    if not _HELD:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with file_lock(path.with_suffix(".lock")):
            try:
                _HELD.append(_opened(path))
            except OSError:
                _HELD.append(_started(path, usual))
        atexit.register(_HELD[0].close)
    return _opened(path)


def _opened(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def _started(path: Path, usual: Mapping[str, str]) -> socket.socket:
    path.unlink(missing_ok=True)
    command = [sys.executable, str(INTERPRETER), str(path)]
    log = path.with_suffix(".log")
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # Not by subprocess, which would warn of a process that outlives this one: other workers may use it.
    process = os.posix_spawn(
        sys.executable, command, dict(usual), setsid=True,
        file_actions=[(os.POSIX_SPAWN_OPEN, file, log, output, 0o600) for file in (1, 2)],
    )  # fmt: skip
    until = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < until and os.waitpid(process, os.WNOHANG) == (0, 0):
        with contextlib.suppress(OSError):
            return _opened(path)
        time.sleep(0.1)
    raise AssertionError(f"{INTERPRETER} does not answer: {log.read_text()}")
