"""The doors of the servers that a person starts: who has no password, or is a page of another origin, stays outside."""

import base64
import io
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from rich.console import Console
from selenium.webdriver.support.ui import WebDriverWait

from reread.commands.servers import basic_login, login
from reread.tracking.connection import Unavailable, connect
from tests.conftest import Project, clean_environment
from tests.reread.tracking.comparison import browser, missing
from tests.servers import auth_of, call, free_port, started

# What a page can try, and which of it is fulfilled. A page never learns whether an unseen request was heard.
TRIES = """
const [prefect, mlflow, auth, done] = arguments;
const json = { "Content-Type": "application/json" };
// Prefect's answers are for pages that send no credentials of the browser's, MLflow's for those that do.
const known = auth ? { Authorization: "Basic " + btoa(auth) } : {};
const sent = { ...json, ...known };
const unseen = { mode: "no-cors" };
const text = (answer) => answer.ok ? answer.text() : Promise.reject(answer.status);
const read = (url, options) => fetch(url, { credentials: "include", ...options }).then(text);
const post = (url, body, headers, more) => read(url, { method: "POST", body: JSON.stringify(body), headers, ...more });
const socket = (url) => new Promise((good, bad) => {
  const made = new WebSocket(url, "prefect");
  made.onopen = () => good("open");
  made.onerror = () => bad("closed");
});
const script = (url) => new Promise((good, bad) => {
  const made = document.head.appendChild(Object.assign(document.createElement("script"), { src: url }));
  made.onload = () => good("loaded");
  made.onerror = () => bad("not loaded");
});
const tries = {
  "read Prefect": read(`${prefect}/api/admin/version`, { headers: known, credentials: "omit" }),
  "write to Prefect": post(`${prefect}/api/flows/`, { name: "of a page" }, sent, { credentials: "omit" }),
  "write to Prefect unseen": post(`${prefect}/api/flows/`, { name: "unseen" }, {}, unseen),
  "a socket of Prefect": socket(`${prefect.replace("http", "ws")}/api/events/in`),
  "read MLflow": post(`${mlflow}/ajax-api/2.0/mlflow/experiments/search`, { max_results: 1 }, json),
  "write to MLflow": post(`${mlflow}/ajax-api/2.0/mlflow/experiments/create`, { name: "of a page" }, json),
  "write to MLflow unseen": post(`${mlflow}/api/2.0/mlflow/experiments/create`, { name: "unseen" }, {}, unseen),
  "embed MLflow": script(`${mlflow}/static-files/asset-manifest.json`),
};
Promise.allSettled(Object.values(tries)).then((outcomes) => {
  done(Object.fromEntries(Object.keys(tries).map((name, n) => [name, outcomes[n].status])));
});
"""


@contextmanager
def page_elsewhere() -> Iterator[str]:
    """An empty page of another origin: on this machine, as that of another account would be."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<title>elsewhere</title>")

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory, template):
    """`reread ui` in a copy of the project: the copy, and the addresses of Prefect and of MLflow."""
    directory = tmp_path_factory.mktemp("pages") / "project"
    shutil.copytree(template, directory, symlinks=True)
    project = Project(directory, clean_environment())
    prefect, mlflow = free_port(), free_port()
    words = ["-m", "reread", "ui", "--prefect-port", str(prefect), "--mlflow-port", str(mlflow)]
    with started(project, *words, until="Ctrl-C") as (_, output):
        yield project, f"http://127.0.0.1:{prefect}", f"http://127.0.0.1:{mlflow}", output


def names(pages: tuple) -> set[str]:
    """The flows in Prefect and the experiments in MLflow."""
    project, prefect, mlflow, _ = pages
    auth = auth_of(project.directory)
    flows = call(f"{prefect}/api/flows/filter", {}, auth)
    experiments = call(f"{mlflow}/api/2.0/mlflow/experiments/search", {"max_results": 100}, auth)
    return {f"flow {flow['name']}" for flow in flows} | {
        f"experiment {experiment['name']}" for experiment in experiments.get("experiments", [])
    }


@pytest.mark.skipif(missing() is not None and not os.environ.get("CI"), reason=str(missing()))
def test_a_page_of_another_origin_gets_nothing_and_starts_nothing(pages):
    project, prefect, mlflow, _ = pages
    auth = auth_of(project.directory)
    before = names(pages)
    with page_elsewhere() as elsewhere, browser() as driver:
        driver.set_script_timeout(60)
        # The person is logged in to both, as a page that knows the password is.
        driver.get(f"{prefect}/")
        waiting = WebDriverWait(driver, 60)
        waiting.until(lambda page: page.find_elements("css selector", "input[type=password]"))
        driver.find_element("css selector", "input[type=password]").send_keys(f"{auth}\n")
        waiting.until(lambda page: "Logout" in page.find_element("tag name", "body").text)
        driver.get(mlflow.replace("//", f"//{auth}@"))
        waiting.until(lambda page: "Experiments" in page.find_element("tag name", "body").text)
        for origin in (f"http://{elsewhere}", f"http://{elsewhere.replace('127.0.0.1', 'localhost')}", "file:///etc"):
            driver.get(origin)
            for known in ("", auth):
                outcomes = driver.execute_async_script(TRIES, prefect, mlflow, known)
                assert set(outcomes.values()) == {"rejected"}, (origin, outcomes)
        assert names(pages) == before
        # The same from the servers' own pages is answered: it is the origin that was refused.
        driver.get(f"{prefect}/")
        outcomes = driver.execute_async_script(TRIES, prefect, mlflow, auth)
        own = {"read Prefect", "write to Prefect", "a socket of Prefect"}
        assert {outcomes[name] for name in own} == {"fulfilled"}, outcomes
        driver.get("about:blank")
        driver.get(f"{mlflow}/")
        outcomes = driver.execute_async_script(TRIES, prefect, mlflow, auth)
        assert {outcomes[name] for name in ("read MLflow", "write to MLflow")} == {"fulfilled"}, outcomes
    assert names(pages) - before >= {"flow of a page", "experiment of a page"}


def answer(address: str, method: str, path: str, **headers: str) -> int:
    """The status of a request with exactly these headers."""
    connection = HTTPConnection(address.removeprefix("http://"), timeout=30)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders(b"" if method == "GET" else b"{}")
    with connection.getresponse() as got:
        status = got.status
    connection.close()
    return status


def test_another_host_and_a_program_without_the_password_are_refused(pages):
    project, prefect, mlflow, _ = pages
    auth = auth_of(project.directory)
    known = {"Authorization": f"Basic {base64.b64encode(auth.encode()).decode()}"}
    wrong = {"Authorization": f"Basic {base64.b64encode(b'reread:reread').decode()}"}
    for address, path in ((prefect, "/api/admin/version"), (mlflow, "/"), (mlflow, "/get-artifact")):
        assert answer(address, "GET", path) == answer(address, "GET", path, **wrong) == 401
        for host in ("evil.example", "10.evil.example", "127.0.0.1.evil.example:4200", "localhost@evil.example", ""):
            assert answer(address, "GET", path, Host=host, **known) in (400, 403), host
    for address, path in ((prefect, "/api/admin/version"), (mlflow, "/")):
        port = address.rpartition(":")[2]
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "127.0.0.1"):
            assert answer(address, "GET", path, Host=host, **known) == 200
        assert answer(address, "GET", path, Origin="http://127.0.0.1:1", **known) == 403
        assert answer(address, "GET", path, Origin="null", **known) == 403
    # A link of another page passes; what such a page embeds does not.
    crossing = {"Sec_Fetch_Site": "cross-site", **known}
    assert answer(mlflow, "GET", "/", Sec_Fetch_Dest="document", **crossing) == 200
    assert answer(mlflow, "GET", "/", Sec_Fetch_Dest="iframe", **crossing) == 403


def test_the_secret_is_drawn_once_and_its_owner_alone_reads_it(pages):
    project = pages[0]
    file = project.directory / "secret.env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert project.git("status", "--porcelain", "secret.env") == ""
    secret = auth_of(project.directory).removeprefix("reread:")
    assert len(secret) >= 32
    # Neither a command line, which every account sees, nor a file that others may read has it.
    assert not [line for line in project.processes().values() if secret in " ".join(line)]
    readable = [pages[3], *(path for path in (project.directory / ".prefect").rglob("*") if path.is_file())]
    assert not [path for path in readable if path.stat().st_mode & 0o044 and secret.encode() in path.read_bytes()]
    for shown in (login, basic_login):
        assert shown(Console(file=io.StringIO())) in pages[3].read_text()
    draw = "from reread.storage.secret import project_secret; print(project_secret())"
    assert project.run("python", "-c", draw).stdout.strip() == secret


def test_a_terminal_shows_the_secret_and_a_log_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    terminal, log = Console(force_terminal=True), Console(file=io.StringIO())
    shown = login(terminal)
    assert shown == auth_of(tmp_path)
    user, password = shown.split(":")
    assert basic_login(terminal) == f"the user {user} and the password {password}"
    # What Prefect's page takes is not the whole line of the file.
    assert login(log) == "what follows = in secret.env (reread:…)"
    assert basic_login(log) == "the user reread and the password that follows reread: in secret.env"


@pytest.mark.parametrize("content", ["", "PREFECT_API_AUTH_STRING=reread:\n", "PREFECT_API_AUTH_STRING=reread:short\n"])
def test_a_secret_that_is_missing_in_its_file_is_refused(project, content):
    (project.directory / "secret.env").write_text(content)
    (project.directory / "secret.env").chmod(0o600)
    done = project.run("python", "-m", "reread", "ui", "--prefect-port", str(free_port()), code=2)
    assert done.stderr.count("\n") == 1 and "secret.env" in done.stderr


def test_a_secret_that_others_may_read_is_refused(project):
    (project.directory / "secret.env").write_text(f"PREFECT_API_AUTH_STRING=reread:{'x' * 32}\n")
    (project.directory / "secret.env").chmod(0o644)
    done = project.run("python", "-m", "reread", "ui", "--prefect-port", str(free_port()), code=2)
    assert done.stderr.count("\n") == 1 and "chmod 600 secret.env" in done.stderr


def test_a_given_server_that_asks_for_a_password_is_named_in_one_line(pages):
    project, prefect, _, _ = pages
    given = {"PREFECT_API_URL": f"{prefect}/api"}
    done = project.run("python", "-m", "reread", "serve", code=2, **given)
    assert done.stderr.count("\n") == 1 and "PREFECT_API_AUTH_STRING" in done.stderr
    known = {**given, "PREFECT_API_AUTH_STRING": auth_of(project.directory)}
    project.run("python", "-m", "prefect", "deployment", "ls", **known)


def test_the_project_s_mlflow_is_a_server_for_a_program_with_its_password(pages, tmp_path, monkeypatch):
    project, _, mlflow, _ = pages
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow)
    with pytest.raises(Unavailable, match="password.*MLFLOW_TRACKING_TOKEN"):
        connect(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", auth_of(project.directory).removeprefix("reread:"))
    assert connect(tmp_path).search_experiments() is not None
