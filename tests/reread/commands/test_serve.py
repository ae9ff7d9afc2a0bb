"""`make serve` and `make ui` in a copy of the project: signals, ports and servers that do not answer."""

import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from reread.commands.servers import Server, ServerFailed, Servers
from reread.storage.errors import InputError
from tests.conftest import ROOT, run_reread
from tests.servers import free_port, started

# `serve` with processes that do nothing in place of Prefect's server and the worker: tests/flows has the real ones.
IDLE_SERVERS = """
import sys
from reread.commands import serve
from reread.commands.servers import Server

def idle(name):
    return lambda *_: Server(name, [sys.executable, "-c", "import time; time.sleep(600)"], {})

serve.prefect_server, serve.worker = idle("Prefect"), idle("the worker")
serve.deploy = serve.close_what_was_killed = lambda *_: None
serve.command(4321)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_server_and_the_worker(project, number):
    with started(project, "-c", IDLE_SERVERS, until="Ctrl-C") as (serve, _):
        assert len(project.processes()) == 4  # with the guard
        serve.send_signal(number)
        serve.wait(60)
    assert project.processes() == {}


def test_the_servers_end_with_their_command_where_the_guard_was_killed(project):
    with started(project, "-c", IDLE_SERVERS, until="Ctrl-C") as (serve, _):
        (guard,) = (process for process, words in project.processes().items() if words[-1].endswith("guard.py"))
        os.kill(guard, signal.SIGKILL)
        serve.terminate()
        serve.wait(60)
    assert project.processes() == {}


# What a command does whose terminal is closed: where it writes to that, it gets an error.
HANGS_UP = """
import signal, time
from pathlib import Path
from reread.commands.servers import _interrupt_by
_interrupt_by(signal.SIGHUP)
try:
    print("ready", flush=True)
    while not Path("end").exists():
        time.sleep(0.1)
    ended = "by itself"
except KeyboardInterrupt:
    print("interrupted", flush=True)
    ended = "by SIGHUP"
Path("ended").write_text(ended)
"""


def test_a_closed_terminal_interrupts_a_command_but_not_one_under_nohup(tmp_path):
    master, slave = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", HANGS_UP], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    os.close(slave)
    assert os.read(master, 5) == b"ready"
    os.close(master)
    assert process.wait(60) == 0 and (tmp_path / "ended").read_text() == "by SIGHUP"

    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", HANGS_UP], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.5)
    (tmp_path / "end").touch()
    process.communicate(timeout=60)
    assert (tmp_path / "ended").read_text() == "by itself"


def test_a_killed_parent_leaves_no_server(project):
    port = free_port()
    with open(project.directory.parent / "ui.txt", "w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "reread", "ui", "--prefect-port", str(port)],
            cwd=project.directory,
            env={**project.environment, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
            stdout=file,
            stderr=file,
        )
        while not any(
            "reread.commands.prefect_server" in " ".join(command) for command in project.processes().values()
        ):
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(0.5)
        process.kill()
        process.wait()
    deadline = time.monotonic() + 30
    while project.processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert project.processes() == {}


def test_a_port_in_use_is_reported_in_one_line(project):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for command in ("ui", "serve"):
            mlflow = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
            done = project.run("python", "-m", "reread", command, "--prefect-port", str(port), code=2, **mlflow)
            assert done.stderr.count("\n") == 1 and f"port {port}" in done.stderr and "--prefect-port" in done.stderr


def test_servers_that_the_environment_names_are_only_printed(project):
    named = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PREFECT_API_URL": "http://127.0.0.1:8/api"}
    done = project.run("python", "-m", "reread", "ui", **named)
    assert "http://127.0.0.1:9 " in done.stdout and "http://127.0.0.1:8 " in done.stdout
    assert project.processes() == {}


def test_a_server_that_does_not_come_up_or_answer_is_reported_in_one_line(project):
    named = {"PREFECT_API_URL": "http://127.0.0.1:8/api"}
    done = project.run("python", "-m", "reread", "serve", code=2, **named)
    assert done.stderr.count("\n") == 1 and "PREFECT_API_URL=http://127.0.0.1:8/api does not answer" in done.stderr

    broken = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "PREFECT_API_DATABASE_CONNECTION_URL": "nonsense://"}
    port = free_port()
    done = project.run("python", "-m", "reread", "ui", "--prefect-port", str(port), code=1, **broken)
    assert done.stderr.count("\n") == 1 and "Prefect has ended with exit code" in done.stderr
    assert f"prefect-{port}.log" in done.stderr
    assert project.processes() == {}


def test_a_server_that_ends_on_a_full_disk_is_no_transient_error(tmp_path, monkeypatch):
    server = Server("Prefect", [], {}, log=tmp_path / "prefect.log")
    failure = Servers()._failure(server, "has ended with exit code 3")
    assert isinstance(failure, ServerFailed) and str(failure).endswith("prefect.log")
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1 << 20))
    failure = Servers()._failure(server, "has ended with exit code 3")
    assert isinstance(failure, InputError) and f"exit code 3: the disk of {tmp_path} has no room" in str(failure)


def test_pages_are_not_opened_where_there_is_no_project(tmp_path):
    done = run_reread("ui", folder=tmp_path)
    assert done.returncode == 2 and "run this from the project's folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


# A command with a server of its own, as `reread run` is: what it asks the server is answered, and to nobody else.
SESSION = """
from urllib.error import HTTPError
from urllib.request import urlopen
from reread.commands.servers import prefect_session
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings
with prefect_session(), get_client(sync_client=True) as client:
    print("flows:", len(client.read_flows()), flush=True)
    print("heartbeat:", get_current_settings().flows.heartbeat_frequency, flush=True)
    try:
        urlopen(f"{client.api_url}version")
    except HTTPError as error:
        print("without a password:", error.code, flush=True)
"""


# Many clients write at once, none of which tries again.
CROWD = """
import asyncio
from collections import Counter
import httpx
from prefect.client.orchestration import get_client
from prefect import flow
from prefect.settings import PREFECT_API_AUTH_STRING
from reread.commands.servers import prefect_session

async def written(url, flow_run):
    auth = tuple(PREFECT_API_AUTH_STRING.value().split(":"))
    async with httpx.AsyncClient(base_url=url, auth=auth, timeout=60) as client:
        async def write(number):
            task_run = {"flow_run_id": flow_run, "task_key": "task", "dynamic_key": str(number)}
            return (await client.post("task_runs/", json=task_run)).status_code
        return Counter(await asyncio.gather(*map(write, range(80))))

with prefect_session(), get_client(sync_client=True) as client:
    flow_run = client.create_flow_run(flow(lambda: None, name="crowd"))
    print(dict(asyncio.run(written(str(client.api_url), str(flow_run.id)))), flush=True)
"""


def test_writers_wait_for_each_other(project):
    assert project.run("python", "-c", CROWD).stdout.splitlines()[-1] == "{201: 80}"


def test_commands_that_start_at_once_in_a_fresh_clone_all_have_a_server(project):
    shutil.rmtree(project.directory / ".prefect")
    commands = [
        subprocess.Popen(
            [sys.executable, "-c", SESSION], cwd=project.directory, env=project.environment, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for _ in range(3)
    ]  # fmt: skip
    for command in commands:
        printed, _ = command.communicate(timeout=300)
        assert command.returncode == 0 and "flows: 0" in printed, printed
        assert "heartbeat: None" in printed and "without a password: 401" in printed, printed
    # The log of a session ends with it, unless the session fails and names it.
    assert list((project.directory / ".prefect").glob("*.log")) == []
    broken = {"PREFECT_API_DATABASE_CONNECTION_URL": "nonsense://"}
    failed = project.run("python", "-c", SESSION, code=1, **broken).stderr
    assert Path(re.search(r"its log: (\S+)", failed)[1]).is_file()
