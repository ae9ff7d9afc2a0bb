"""Check the databases and servers of a team's service.

reread service
reread service --settings OTHER.env --json

One line per check. The exit code is 1 where one fails.

reread service init       write service.env with new passwords
reread service sql        print the SQL that makes its role in PostgreSQL
reread serve --service    start the servers
reread service user       make a user, or give one a new password
reread service backup     save both databases while the service runs
reread service restore    restore them
"""

import base64
import json
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import typer
from rich.console import Console

from reread.commands.options import AsJson, print_json
from reread.commands.service_settings import SETTINGS, ServiceSettings, Settings, read_settings
from reread.storage.errors import InputError

SECONDS = 15


@dataclass(frozen=True)
class Check:
    """One check of the service; ``detail`` is what was found."""

    name: str
    passed: bool
    detail: str


def command(settings: Settings = SETTINGS, as_json: AsJson = False) -> None:
    console = Console(highlight=False, soft_wrap=True)
    done = list(checks(read_settings(settings)))
    if as_json:
        print_json([asdict(check) for check in done])
    else:
        for check in done:
            console.print(f"{'ok  ' if check.passed else 'FAIL'} {check.name:<22} {check.detail}", markup=False)
    if not all(check.passed for check in done):
        raise typer.Exit(1)


def checks(settings: ServiceSettings) -> Iterator[Check]:
    """Check each part of the service as a client of it."""
    yield from _databases(settings)
    prefect, mlflow = f"{settings.prefect_page}/api", f"{settings.mlflow_page}/api/2.0"
    yield _answers("Prefect", f"{prefect}/ready")
    count = f"{prefect}/flows/count"
    yield from _guarded("Prefect", "POST", count, settings.prefect_auth, "the server has another password")
    yield _answers("MLflow", f"{settings.mlflow_page}/health")
    search = f"{mlflow}/mlflow/experiments/search?max_results=1"
    changed = "the password of `admin` was changed in MLflow: write that one into the settings"
    yield from _guarded("MLflow", "GET", search, settings.mlflow_auth, changed)
    yield _artifacts(settings, f"{mlflow}/mlflow-artifacts/artifacts/.checks/{uuid.uuid4().hex}")


def request(method: str, url: str, auth: str | None = None, body: Any = None) -> tuple[int, str]:
    """Send a request and return its status and text; status 0 and the reason where nothing answers.

    auth: USER:PASSWORD; body: bytes, or a value that is sent as JSON.
    """
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {} if isinstance(body, bytes) else {"Content-Type": "application/json"}
    if auth:
        headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, headers, method=method), timeout=SECONDS) as got:
            return got.status, got.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(getattr(error, "reason", error))


def _databases(settings: ServiceSettings) -> Iterator[Check]:
    from reread.commands.databases import connection

    for name, database in settings.databases.items():
        try:
            with connection(settings, database) as connected:
                version = connected.server_version // 10000
            yield Check(f"database of {name}", True, f"{database} on PostgreSQL {version} at {settings.database}")
        except InputError as error:
            yield Check(f"database of {name}", False, str(error))


def _answers(server: str, url: str) -> Check:
    status, text = request("GET", url)
    return Check(server, status == 200, f"{url} answers {status}" if status else f"{url} does not answer ({text})")


def _guarded(server: str, method: str, url: str, auth: str, changed: str) -> Iterator[Check]:
    """Check that a request without a password is refused, and one with it is not."""
    name = f"password of {server}"
    without, _ = request(method, url)
    status, text = request(method, url, auth)
    if without != 401:
        yield Check(name, False, f"a request without a password is answered by {without}, not refused (401)")
    elif status != 200:
        yield Check(name, False, changed if status == 401 else f"{url} answers {status} ({text[:200]})")
    else:
        yield Check(name, True, "asked for, and accepted")


def _artifacts(settings: ServiceSettings, url: str) -> Check:
    """Check that an artifact can be written, read and removed through MLflow's server."""
    sent = b"reread"
    for method, body in (("PUT", sent), ("GET", None), ("DELETE", None)):
        status, text = request(method, url, settings.mlflow_auth, body)
        if status != 200 or (method == "GET" and text.encode() != sent):
            return Check("artifacts", False, f"{settings.artifacts}: {method} answers {status} ({text[:200]})")
    return Check("artifacts", True, f"{settings.artifacts} can be written and read")
