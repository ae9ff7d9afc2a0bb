"""Import the libraries, then run commands in forks of this process:  python tests/interpreter.py SOCKET

tests/forks.py asks it. It imports nothing of the project: each command imports that of its own folder.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import types
from pathlib import Path
from typing import NamedTuple

# What the commands import, of the libraries, and what Prefect does. The first optimiser imports torch._dynamo.
LIBRARIES = (
    "aiosqlite", "alembic.config", "asyncpg", "coolname", "cryptography.fernet", "cyclopts", "docket", "fastapi",
    "flask", "fsspec", "griffe", "httpx", "jinja2", "jsonschema", "matplotlib.figure", "mlflow", "mlflow.pyfunc",
    "mlflow.store.model_registry.sqlalchemy_store", "mlflow.store.tracking.sqlalchemy_store", "mlflow.tracking",
    "opentelemetry.sdk.metrics", "pandas", "pendulum", "prometheus_client", "pyarrow.parquet", "pydantic.v1",
    "pydantic_settings", "rich.progress", "safetensors.torch", "scipy.stats", "sklearn.ensemble",
    "sklearn.linear_model", "sklearn.metrics", "sklearn.model_selection", "sklearn.naive_bayes", "sklearn.svm",
    "slugify", "sqlalchemy.ext.asyncio", "toml", "torch", "torch._dynamo", "typer", "uvicorn", "websockets",
)  # fmt: skip


class Request(NamedTuple):
    """A command: its words after ``python`` (-m or -c), its folder, its environment, and its three open files."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    files: list[int]


def main() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    others = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    if others:
        sys.exit(f"a fork would lose the threads {others}, which a library starts at its import")
    gc.collect()
    gc.freeze()
    # A folder of a test can be removed.
    os.chdir("/")
    path = Path(sys.argv[1])
    request = serve(path)
    if request is None:
        shutil.rmtree(path.parent)
        return
    become(request)
    option, what, *_ = request.words
    try:
        if option == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            leave((end.code or 0) & 0xFF)
        raise
    leave(0)


def leave(code: int) -> None:
    """End this process as Python does, but for what it does with each object: that takes half a second of the CPU.

    Return where Python would have something to say of output that cannot be written.
    """
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve(path: Path) -> Request | None:
    """Fork for each request. Return it in the new process, and None in this one when no connection is left."""
    wakeup, children = selectors.DefaultSelector(), {}
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    wakeup.register(listener, selectors.EVENT_READ)
    connections: set[socket.socket] = set()
    while True:
        for key, _ in wakeup.select():
            source = key.fileobj
            if source is listener:
                connection, _ = listener.accept()
                connections.add(connection)
                wakeup.register(connection, selectors.EVENT_READ)
            elif isinstance(source, socket.socket):
                wakeup.unregister(source)
                request = _received(source)
                child = os.fork() if request else 0
                if request and not child:
                    for each in (wakeup, listener, *connections):
                        each.close()
                    return request
                if request:
                    _close(request.files)
                    ended = os.pidfd_open(child)
                    children[ended] = child, source
                    wakeup.register(ended, selectors.EVENT_READ)
                    # A client that gives up ends its command.
                    wakeup.register(source, selectors.EVENT_READ, child)
                else:
                    if key.data:
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(key.data, signal.SIGKILL)
                    source.close()
                    connections.discard(source)
            else:
                child, connection = children.pop(source)
                wakeup.unregister(source)
                os.close(source)
                _, status = os.waitpid(child, 0)
                wakeup.modify(connection, selectors.EVENT_READ)
                with contextlib.suppress(OSError):
                    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        if not connections:
            return None


def _received(connection: socket.socket) -> Request | None:
    """Return the request that a connection sends, or None where it was closed."""
    header, files, _, _ = socket.recv_fds(connection, 4, 3)
    if len(files) < 3:
        _close(files)
        return None
    size, content = int.from_bytes(header, "big"), b""
    while len(content) < size:
        content += connection.recv(size - len(content))
    return Request(**json.loads(content), files=list(files))


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def become(request: Request) -> None:
    """Make this process what ``python`` would have started."""
    for file, place in zip(request.files, range(3), strict=True):
        os.dup2(file, place)
    _close(request.files)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    sys.argv = request.words[1:] if request.words[0] == "-m" else ["-c", *request.words[2:]]
    first = request.folder if request.words[0] == "-m" else ""
    sys.path[:1] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    # What a program defines is found there by name.
    sys.modules["__main__"] = types.ModuleType("__main__")


if __name__ == "__main__":
    main()
