"""Servers that run while somebody looks or deploys: Prefect's, MLflow's and a worker, started and stopped together.

Each has a session of its own, so that Ctrl-C reaches this process alone. A guard process stops them in order when this
one leaves the block or is killed. They answer on 127.0.0.1 only, but for a team's service, and ask for the secret of
this folder or for the team's passwords. Their output goes to a file each in Prefect's home, or to the terminal where it
is for the person there.
"""

import atexit
import contextlib
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

import tasks
from reread.storage.errors import InputError, TransientError
from reread.storage.locks import file_lock
from reread.storage.secret import SECRET, USER, project_auth, project_secret
from reread.training.launcher import STOPPING

HOST = "127.0.0.1"
LOCKS = Path(".locks")
POOL = "reread"
START_SECONDS = 180
LEAST_ROOM = 16 << 20  # bytes; Prefect's database of a few runs takes 3 MB, and the log of its changes 5
SIGNALS = (signal.SIGINT, signal.SIGTERM)
WATCH_SECONDS = 0.5
# What Prefect's page takes, for those who are not at the terminal: others may read a log.
IN_SECRET = f"what follows = in {SECRET}"


class ServerFailed(TransientError):
    """A server ended, does not answer, or refuses a request. A busy machine can be the cause."""


@dataclass(frozen=True)
class Server:
    """A process that may listen on a port.

    port: 0 for none; option: what chooses another; health: the URL that answers; log: by default the terminal.
    """

    name: str
    command: list[str]
    environment: dict[str, str]
    port: int = 0
    option: str = ""
    health: str = ""
    log: Path | None = None
    host: str = HOST

    @property
    def page(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> subprocess.Popen[bytes]:
        """Start the process in a session of its own."""
        environment = {**os.environ, **self.environment}
        output = None
        if self.log:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            output = open(self.log, "w", encoding="utf-8")  # noqa: SIM115 (closed below)
        else:
            # Its logs are for the person at this terminal.
            environment.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)
        with output or contextlib.nullcontext():
            return subprocess.Popen(
                self.command, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT if output else None, start_new_session=True,
            )  # fmt: skip


def prefect_server(port: int) -> Server:
    """Prefect's server on its database in Prefect's home."""
    environment = prefect_environment(api_url(port), project_auth())
    command = module_command("reread.commands.prefect_server", "--port", str(port))
    health = f"{api_url(port)}/health"
    return Server("Prefect", command, environment, port, "--prefect-port", health, _log("prefect", port))


def prefect_environment(api: str, auth: str) -> dict[str, str]:
    """Return the settings of a Prefect server at ``api`` that asks for ``auth``, USER:PASSWORD."""
    return {
        # The server calls itself at this address.
        "PREFECT_API_URL": api,
        "PREFECT_API_AUTH_STRING": auth,
        "PREFECT_SERVER_API_AUTH_STRING": auth,
        # Its page asks the host that it came from: by default port 4200.
        "PREFECT_SERVER_UI_API_URL": "/api",
        "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    }


def mlflow_server(port: int) -> Server:
    """MLflow's server on the project's database, which is created where it is missing."""
    from reread.tracking.addresses import ARTIFACTS
    from reread.tracking.connection import tracking_uri
    from reread.tracking.runs import open_tracking

    open_tracking()
    project_secret()
    command = module_command(
        "reread.tracking.server", "server", "--app-name", "reread", "--workers", "1",
        "--host", HOST, "--port", str(port), "--no-serve-artifacts", "--backend-store-uri", tracking_uri(),
        "--default-artifact-root", ARTIFACTS.resolve().as_uri(),
    )  # fmt: skip
    # Without its job runner it starts in half the time, and is two processes rather than eight.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    health = f"http://{HOST}:{port}/health"
    return Server("MLflow", command, environment, port, "--mlflow-port", health, _log("mlflow", port))


def worker(client: dict[str, str], limit: int) -> Server:
    """A worker of the pool: at most ``limit`` flow runs at a time, their logs on this terminal."""
    environment = {
        **client,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        # prefect.yaml's pull steps read it: a deployment contains no path.
        "REREAD_PROJECT": str(Path.cwd()),
    }
    command = module_command("prefect", "worker", "start", "--pool", POOL, "--name", POOL, "--limit", str(limit))
    return Server("the worker", command, environment)


def api_url(port: int) -> str:
    """Return the address of the API of a Prefect server on this machine."""
    return f"http://{HOST}:{port}/api"


def client_of(port: int) -> dict[str, str]:
    """Return the variables of a client of this folder's Prefect server."""
    return {"PREFECT_API_URL": api_url(port), "PREFECT_API_AUTH_STRING": project_auth()}


def given_client() -> dict[str, str] | None:
    """Return the variables of a client of the server that PREFECT_API_URL names; None where it is not set.

    InputError where that server does not answer, or refuses this client.
    """
    api = os.environ.get("PREFECT_API_URL")
    if not api:
        return None
    if not _answers(f"{api.rstrip('/')}/health"):
        raise InputError(f"PREFECT_API_URL={api} does not answer: start that server or unset the variable")
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError

    try:
        with get_client(sync_client=True) as client:
            client.api_version()
    except PrefectHTTPStatusError as error:
        if error.response.status_code == 401:
            raise InputError(
                f"PREFECT_API_URL={api} asks for a password: set PREFECT_API_AUTH_STRING. Of a server of this folder "
                f"it is in {SECRET}: export $(cat {SECRET})"
            ) from None
        raise
    return {"PREFECT_API_URL": api}


def login(console: Console) -> str:
    """Return what Prefect's page takes, USER:PASSWORD, for the person at a terminal, else where it is."""
    return project_auth() if console.is_terminal else f"{IN_SECRET} ({USER}:…)"


def basic_login(console: Console) -> str:
    """Return the user and the password, which a browser asks for on the other pages, likewise."""
    password = project_secret() if console.is_terminal else f"that follows {USER}: in {SECRET}"
    return f"the user {USER} and the password {password}"


def client_settings(client: Mapping[str, str | None]) -> contextlib.AbstractContextManager[Any]:
    """Let Prefect's clients in the block use these variables; yield their settings."""
    from prefect import settings

    return settings.temporary_settings({getattr(settings, name): value for name, value in client.items()})


def deploy(variables: dict[str, str]) -> None:
    """Create the work pool where it is missing, and every deployment of prefect.yaml.

    A schedule that somebody has switched on stays on: prefect.yaml would switch it off each time.
    variables: of a client. ServerFailed when the server refuses.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, PrefectHTTPStatusError
    from prefect.workers.process import ProcessWorker

    api = variables["PREFECT_API_URL"]
    pool = WorkPoolCreate(name=POOL, type="process", base_job_template=ProcessWorker.get_default_base_job_template())
    with client_settings(variables), get_client(sync_client=True) as client:
        active = {
            deployment.id
            for deployment in client.read_deployments()
            if any(schedule.active for schedule in deployment.schedules)
        }
        try:
            client.create_work_pool(pool)
        except ObjectAlreadyExists:
            pass
        except PrefectHTTPStatusError as error:
            raise ServerFailed(f"the work pool {POOL} cannot be made at {api}: {error}") from None
        deployed = subprocess.run(
            module_command("prefect", "--no-prompt", "deploy", "--all"), env={**os.environ, **variables},
            text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if deployed.returncode:
            raise ServerFailed(f"the deployments of prefect.yaml cannot be made at {api}:\n{deployed.stdout}")
        for deployment in client.read_deployments():
            for schedule in deployment.schedules if deployment.id in active else ():
                client.update_deployment_schedule(deployment.id, schedule.id, active=True)


class Servers:
    """The servers that this process has started. Leaving the block stops them, last one first."""

    def __init__(self) -> None:
        self.running: list[tuple[Server, subprocess.Popen[bytes]]] = []
        self.failed = False
        self.ports = contextlib.ExitStack()

    def __enter__(self) -> "Servers":
        _interrupt_by(*SIGNALS, signal.SIGHUP)
        command = [sys.executable, str(Path(__file__).with_name("guard.py"))]
        self.guard = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        import psutil  # which `reread doctor` may find missing

        from reread.commands.guard import stop

        if self.guard.stdin:
            self.guard.stdin.close()
        while self.guard.poll() is None:
            for _server, process in self.running:
                process.poll()  # the guard waits until an ended one is gone
            time.sleep(0.02)
        for _server, process in reversed(self.running):
            # Where the guard was killed, it has stopped none.
            if process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                    stop(psutil.Process(process.pid))
            process.wait()
        # The name of a session's log is another one each time.
        for server, _process in self.running:
            if server.log and not self.failed:
                server.log.unlink(missing_ok=True)
        self.ports.close()

    def start(self, *servers: Server) -> None:
        """Start ``servers`` and wait until each answers."""
        self.launch(*servers)
        self.wait(*servers)

    def launch(self, *servers: Server) -> None:
        """Start the processes of ``servers``; use one that another terminal runs for this folder.

        InputError when another program has a port.
        """
        for server in servers:
            if server.port:
                if not self.ports.enter_context(file_lock(port_lock(server.port), blocking=False)):
                    continue
                # Removed while it is held: a session's port is another one each time.
                self.ports.callback(port_lock(server.port).unlink, missing_ok=True)
                _refuse_taken(server)
            process = server.start()
            print(process.pid, file=self.guard.stdin, flush=True)
            self.running.append((server, process))

    def wait(self, *servers: Server) -> None:
        """Wait until each of ``servers`` answers; ServerFailed when one ends before that."""
        for server in servers:
            deadline = time.monotonic() + START_SECONDS
            while server.health and not _answers(server.health):
                self.refuse_ended()
                if time.monotonic() > deadline:
                    raise self._failure(server, f"does not answer after {START_SECONDS} s")
                time.sleep(0.2)

    def watch(self) -> None:
        """Wait for a signal; ServerFailed as soon as a server has ended. Return where none was started."""
        while self.running:
            self.refuse_ended()
            time.sleep(WATCH_SECONDS)

    def refuse_ended(self) -> None:
        """Raise InputError or ServerFailed where a server has ended."""
        for server, process in self.running:
            if process.poll() is not None:
                raise self._failure(server, f"has ended with exit code {process.returncode}")

    def _failure(self, server: Server, what: str) -> InputError | ServerFailed:
        """Return the error of a server; the log that it names stays."""
        self.failed = True
        folder = server.log.parent if server.log else Path()
        if shutil.disk_usage(folder).free < LEAST_ROOM:
            return InputError(
                f"{server.name} {what}: the disk of {folder} has no room for its database: make room there"
            )
        log = f"; its log: {server.log}" if server.log else ""
        return ServerFailed(f"{server.name} {what}{log}")


@contextlib.contextmanager
def prefect_session() -> Iterator[None]:
    """Let flows inside the block report to PREFECT_API_URL or, where it is not set, to a server of this process.

    Prefect would start a temporary one itself, but that one outlives a flow that is killed. Both use the same database,
    so that ``reread ui`` shows these runs later. InputError where PREFECT_API_URL does not answer or refuses;
    ServerFailed when the server of this process ends inside the block.
    """
    if given_client():
        _interrupt_by(signal.SIGTERM, signal.SIGHUP)
        with _cancelled_when_interrupted():
            yield
        return
    from tasks.progress import say

    with socket.socket() as free:
        free.bind((HOST, 0))
        port = free.getsockname()[1]
    servers = Servers().__enter__()
    # Prefect's threads deliver their last logs and events when the interpreter ends, and wait forever for a server
    # that is gone: it is stopped after them.
    atexit.register(servers.__exit__)
    server = prefect_server(port)
    servers.launch(server)
    import flows.definition  # noqa: F401 (while the server starts: each takes seconds)

    servers.wait(server)
    say(f"Prefect: http://{HOST}:{port} while this runs (log in with {IN_SECRET})")
    # Nobody watches heartbeats on a server that ends with this process, and each flow would end up to a second later.
    client = {**client_of(port), "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": None}
    with client_settings(client) as settings, _cancelled_when_interrupted(), _ended_with(servers, settings):
        yield


@contextlib.contextmanager
def _ended_with(servers: Servers, settings: Any) -> Iterator[None]:
    """Interrupt the block when one of ``servers`` ends, and raise why. settings: of Prefect's clients in the block.

    Clients would try again for minutes, with tracebacks, and so would the queues of events when the interpreter ends.
    """
    left = threading.Event()
    failures: list[InputError | ServerFailed] = []

    def watch() -> None:
        while not (failures or left.wait(WATCH_SECONDS)):
            try:
                servers.refuse_ended()
            except (InputError, ServerFailed) as error:
                failures.append(error)
                logging.disable()
                settings.client.max_retries = 0
                os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except BaseException:
        if not failures:
            raise
        # Before the functions by which Prefect's queues wait, which began earlier.
        threading._register_atexit(_leave, servers, getattr(failures[0], "exit_code", 1))  # type: ignore[attr-defined]
        raise failures[0] from None
    finally:
        left.set()


def _leave(servers: Servers, code: int) -> None:
    """End this process at once. The locks of its flow runs stay: their states have to be set."""
    servers.__exit__()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


@contextlib.contextmanager
def _cancelled_when_interrupted() -> Iterator[None]:
    """Let Prefect show as cancelled the flow runs of the block that Ctrl-C or SIGTERM ends."""
    try:
        yield
    except KeyboardInterrupt:
        from tasks.liveness import cancel_interrupted

        # An error of Prefect's server does not hide the interrupt.
        with contextlib.suppress(Exception):
            cancel_interrupted()
        raise


def port_lock(port: int) -> Path:
    """Return the lock that is held while a server of this folder has ``port``."""
    return LOCKS / f"port-{port}.lock"


def is_free(port: int, host: str = HOST) -> bool:
    """Return whether a server can listen on a port of an address of this machine."""
    with socket.socket() as listener:
        # As the servers do: a port whose connections are still closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except (OSError, OverflowError):
            return False
        return True


def _refuse_taken(server: Server) -> None:
    if not is_free(server.port, server.host):
        raise InputError(
            f"port {server.port} on {server.host} is not free for {server.name}: stop what listens there, "
            f"or choose another with {server.option}"
        )


def _interrupt_by(*numbers: signal.Signals) -> None:
    """Treat these signals as Ctrl-C, but for one that is ignored, as SIGHUP is under nohup."""
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def interrupt(*_: object) -> None:
        # Every later one is ignored while all is being stopped, and training processes end by the same signal.
        for number in (*SIGNALS, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        STOPPING.set()
        for terminal in terminals:
            if not os.isatty(terminal):  # it was closed: to write there is an error
                os.dup2(os.open(os.devnull, os.O_WRONLY), terminal)
        raise KeyboardInterrupt

    for number in numbers:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, interrupt)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:
        with error:
            return error.code == 401  # it asks for a password
    except (OSError, ValueError):  # the latter: not an address
        return False


def module_command(name: str, *arguments: str) -> list[str]:
    """Return the command line of a module of this Python."""
    return [sys.executable, "-m", name, *arguments]


def _log(name: str, port: int) -> Path:
    return Path(os.environ.get("PREFECT_HOME", tasks.DEFAULTS["PREFECT_HOME"])) / f"{name}-{port}.log"
