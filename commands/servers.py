"""Servers beside us while somebody looks or deploys: Prefect's, MLflow's and a worker, started and stopped together.

Each is a process group of its own, so that Ctrl-C reaches us alone and we stop them in order; when we are killed
the kernel tells them. They answer on 127.0.0.1 alone. What they print goes to a file in Prefect's home, or to the
terminal where a person wants to read it.
"""

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import tasks
from storage.errors import InputError, PassingError
from storage.locks import file_lock
from tracking.runs import ARTIFACTS, open_tracking, tracking_uri

HOST = "127.0.0.1"
LOCKS = Path(".locks")
POOL = "reread"
START_SECONDS = 180
STOP_SECONDS = 15
STOPS = (signal.SIGINT, signal.SIGTERM)
SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


class ServerFailed(PassingError):
    """A server has ended by itself, does not come up, or refuses what it is asked. A busy machine can be the cause."""


@dataclass(frozen=True)
class Server:
    """One process: its ``port`` and ``option`` to choose another (0: it has none), ``health`` answers when it is up."""

    name: str
    command: list[str]
    environment: dict[str, str]
    port: int = 0
    option: str = ""
    health: str = ""
    log: Path | None = None

    @property
    def page(self) -> str:
        return f"http://{HOST}:{self.port}"


def prefect_server(port: int) -> Server:
    """Prefect's server on its database in Prefect's home."""
    # The server itself must know its address, or its page asks port 4200.
    environment = {"PREFECT_API_URL": api_url(port), "PREFECT_SERVER_LOGGING_LEVEL": "WARNING"}
    arguments = ["server", "start", "--host", HOST, "--port", str(port)]
    return Server(
        "Prefect", _module("prefect", *arguments), environment, port, "--prefect-port", f"{api_url(port)}/health",
        _log("server"),
    )  # fmt: skip


def mlflow_server(port: int) -> Server:
    """MLflow's server on our own database, which is made here where it is not there yet."""
    open_tracking()
    arguments = [
        "server", "--workers", "1", "--host", HOST, "--port", str(port), "--no-serve-artifacts",
        "--backend-store-uri", tracking_uri(), "--default-artifact-root", ARTIFACTS.resolve().as_uri(),
    ]  # fmt: skip
    # Without its job runner it starts in half the time, and is two processes rather than eight.
    environment = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    return Server(
        "MLflow", _module("mlflow", *arguments), environment, port, "--mlflow-port", f"http://{HOST}:{port}/health",
        _log("mlflow"),
    )  # fmt: skip


def worker(api: str, limit: int) -> Server:
    """A worker of the pool: at most ``limit`` flow runs at a time, their logs on this terminal."""
    environment = {
        "PREFECT_API_URL": api,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        # prefect.yaml's pull steps ask for it: a deployment holds no path.
        "REREAD_PROJECT": str(Path.cwd()),
    }
    arguments = ["worker", "start", "--pool", POOL, "--name", POOL, "--limit", str(limit)]
    return Server("the worker", _module("prefect", *arguments), environment)


def api_url(port: int) -> str:
    """The address of the API of a Prefect server of ours."""
    return f"http://{HOST}:{port}/api"


def refuse_silent(api: str) -> None:
    """InputError when no Prefect server answers at ``api``."""
    if not _answers(f"{api.rstrip('/')}/health"):
        raise InputError(f"PREFECT_API_URL={api} does not answer: start that server or unset the variable")


def deploy(api: str) -> None:
    """Make the work pool where it is not there, and every deployment of prefect.yaml.

    A schedule that somebody has switched on stays on: prefect.yaml would switch it off each time.
    InputError when no server answers there, ServerFailed when it refuses.
    """
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    refuse_silent(api)
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        on = {one.id for one in client.read_deployments() if any(schedule.active for schedule in one.schedules)}
        created = _prefect(api, "work-pool", "create", POOL, "--type", "process")
        if created.returncode and "already exists" not in created.stdout:
            raise ServerFailed(f"the work pool {POOL} cannot be made at {api}:\n{created.stdout}")
        deployed = _prefect(api, "deploy", "--all")
        if deployed.returncode:
            raise ServerFailed(f"the deployments of prefect.yaml cannot be made at {api}:\n{deployed.stdout}")
        for deployment in client.read_deployments():
            for schedule in deployment.schedules if deployment.id in on else ():
                client.update_deployment_schedule(deployment.id, schedule.id, active=True)


class Servers:
    """The servers that this process has started. Leaving the block stops them, last one first."""

    def __init__(self) -> None:
        self.running: list[tuple[Server, subprocess.Popen]] = []
        self.held = contextlib.ExitStack()

    def __enter__(self) -> "Servers":
        for number in STOPS:
            signal.signal(number, _interrupt)
        return self

    def __exit__(self, *_) -> None:
        for _server, process in reversed(self.running):
            _stop(process)
        self.held.close()

    def start(self, *servers: Server) -> None:
        """Start ``servers`` and wait until each answers; one that another terminal runs for this folder is used.

        InputError when a port is taken by somebody else, ServerFailed when a server ends while it starts.
        """
        for server in servers:
            if server.port:
                lock = file_lock(port_lock(server.port), blocking=False)
                if not self.held.enter_context(lock):
                    continue
                _refuse_taken(server)
            self.running.append((server, _start(server)))
        for server in servers:
            if server.health:
                self._wait_until_up(server)

    def watch(self) -> None:
        """Wait for a signal; ServerFailed as soon as a server has ended by itself. Return where none was started."""
        while self.running:
            self._refuse_ended()
            time.sleep(0.5)

    def _wait_until_up(self, server: Server) -> None:
        deadline = time.monotonic() + START_SECONDS
        while not _answers(server.health):
            self._refuse_ended()
            if time.monotonic() > deadline:
                raise ServerFailed(f"{server.name} does not answer after {START_SECONDS} s; its log: {server.log}")
            time.sleep(0.2)

    def _refuse_ended(self) -> None:
        for server, process in self.running:
            if process.poll() is not None:
                where = f"; its log: {server.log}" if server.log else ""
                raise ServerFailed(f"{server.name} has ended with exit code {process.returncode}{where}")


def _interrupt(*_) -> None:
    """SIGTERM as Ctrl-C, and the first of them alone: while the servers are being stopped no other is heard."""
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def port_lock(port: int) -> Path:
    """The lock that is held while a server of this folder has ``port``."""
    return LOCKS / f"port-{port}.lock"


def _refuse_taken(server: Server) -> None:
    with socket.socket() as listener:
        # As the servers do: a port whose connections are still closing is free.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, server.port))
        except (OSError, OverflowError):
            raise InputError(
                f"port {server.port} on {HOST} is not free for {server.name}: stop what listens there, "
                f"or choose another, as `python -m commands.ui {server.option} {server.port + 1}`"
            ) from None


def _start(server: Server) -> subprocess.Popen:
    environment = {**os.environ, **server.environment}
    with contextlib.ExitStack() as stack:
        output = None
        if server.log:
            server.log.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(open(server.log, "w", encoding="utf-8"))
        else:
            # Its logs are for the person at this terminal.
            environment.pop("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", None)
        return subprocess.Popen(
            server.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
            preexec_fn=_ends_with_parent(),
        )


def _ends_with_parent() -> Callable[[], None] | None:
    """What the new process calls first: the kernel is to send it SIGTERM when we are gone (Linux)."""
    if not sys.platform.startswith("linux"):
        return None
    libc, parent = ctypes.CDLL(None), os.getpid()

    def ask() -> None:
        libc.prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)

    return ask


def _stop(process: subprocess.Popen) -> None:
    """Ask the process to end, wait, and then end what is left of its group."""
    _stop_flow_runs(process.pid)
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _stop_flow_runs(worker_id: int) -> None:
    """Let the flow runs of a worker end first, while the server still listens.

    The worker itself would kill them, and Prefect and MLflow would show them as running for ever. A flow run leads a
    process group. It waits for its training processes, and may start another before it hears of the signal.
    """
    flow_runs = {child for child in _children(worker_id) if _leads_a_group(child)}
    _signal(flow_runs)
    deadline = time.monotonic() + STOP_SECONDS
    while flow_runs & _children(worker_id) and time.monotonic() < deadline:
        for flow_run in flow_runs:
            _signal(_children(flow_run))
        time.sleep(0.2)


def _leads_a_group(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getpgid(pid) == pid
    return False


def _children(pid: int) -> set[int]:
    """The processes that ``pid`` has started and that have not ended, as /proc has them (Linux)."""
    children: set[int] = set()
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children |= set(map(int, listed.read_text().split()))
    return children


def _signal(processes: Iterable[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGTERM)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status == 200
    except (OSError, ValueError):  # the latter: no address at all
        return False


def _module(name: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", name, *arguments]


def _prefect(api: str, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        _module("prefect", "--no-prompt", *arguments),
        env={**os.environ, "PREFECT_API_URL": api},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _log(name: str) -> Path:
    return Path(os.environ.get("PREFECT_HOME", tasks.DEFAULTS["PREFECT_HOME"])) / f"{name}.log"
