"""A team's service with real servers: passwords, several workers at once, artifacts, backup and restore."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError

import psutil
import psycopg2
import pytest
from mlflow import MlflowClient

from reread.commands.service import request as ask
from reread.commands.service_settings import ServiceSettings, read_settings, write_settings
from reread.storage.errors import InputError
from tests.conftest import ROOT, Project, clean_environment
from tests.reread.commands.object_store import object_store
from tests.reread.commands.postgres import postgres_server, programs
from tests.servers import call, free_port, started

SECRETS = ("database_password", "prefect_password", "mlflow_password", "mlflow_secret")


def set_values(file: Path, **values: object) -> None:
    """Set values in a file of settings, whether they are commented out or not."""
    lines = file.read_text().splitlines()
    for name, value in values.items():
        variable = f"REREAD_SERVICE_{name.upper()}="
        (number,) = (i for i, line in enumerate(lines) if line.removeprefix("# ").startswith(variable))
        lines[number] = f"{variable}{value}"
    file.write_text("\n".join(lines))


@pytest.fixture
def settings_file(tmp_path, monkeypatch):
    """Fresh settings, which no variable of the environment overrides."""
    for name in list(os.environ):
        if name.startswith("REREAD_SERVICE_"):
            monkeypatch.delenv(name)
    write_settings(tmp_path / "service.env")
    return tmp_path / "service.env"


# Settings


def test_new_settings_have_a_password_each_and_only_their_owner_reads_them(settings_file, tmp_path):
    assert settings_file.stat().st_mode & 0o777 == 0o600
    write_settings(tmp_path / "other.env")
    drawn = {
        getattr(read_settings(file), name).get_secret_value()
        for file in (settings_file, tmp_path / "other.env")
        for name in SECRETS
    }
    assert len(drawn) == 8 and min(map(len, drawn)) >= 32
    assert not any(secret in repr(read_settings(settings_file)) for secret in drawn)
    with pytest.raises(InputError, match="exists"):
        write_settings(settings_file)
    # Nothing but passwords has to be given, and none has a default.
    assert {name for name, field in ServiceSettings.model_fields.items() if field.is_required()} == set(SECRETS)
    assert ServiceSettings.model_fields["host"].default == "127.0.0.1"


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("mlflow_password", "password", "REREAD_SERVICE_MLFLOW_PASSWORD"),
        ("prefect_password", "", "REREAD_SERVICE_PREFECT_PASSWORD"),
        ("mlflow_port", "70000", "REREAD_SERVICE_MLFLOW_PORT"),
        ("database", "postgresql://127.0.0.1/", "REREAD_SERVICE_DATABASE"),
        ("database_prefix", "a; DROP TABLE runs", "REREAD_SERVICE_DATABASE_PREFIX"),
    ],
)
def test_a_wrong_setting_is_named_and_no_password_is_shown(settings_file, name, value, named):
    set_values(settings_file, **{name: value})
    with pytest.raises(InputError, match=named) as refused:
        read_settings(settings_file)
    assert "\n" not in str(refused.value) and not (value and name in SECRETS and value in str(refused.value))


def test_settings_that_others_may_read_or_that_are_missing_are_refused(settings_file, tmp_path, reread):
    settings_file.chmod(0o640)
    assert "chmod 600" in reread("service", "--settings", str(settings_file), code=2)
    missing = reread("serve", "--service", "--settings", str(tmp_path / "none.env"), code=2)
    assert "none.env does not exist" in missing and "reread service init" in missing
    assert "--limit" in reread("serve", "--service", "--limit", "2", code=2)


def test_a_database_that_does_not_answer_is_one_line(settings_file, reread):
    set_values(settings_file, database=f"127.0.0.1:{free_port()}")
    for command in (["serve", "--service"], ["service", "backup"]):
        printed = reread(*command, "--settings", str(settings_file), code=2)
        assert "PostgreSQL at 127.0.0.1" in printed and "reread service sql" in printed


# The service


class Service:
    """The servers of a folder with service.env, and the command in that folder."""

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        self.folder = folder
        self.file = folder / "service.env"
        self.settings = read_settings(self.file)
        self.ran: list[tuple[str, ...]] = []
        self.environment = {**clean_environment(), "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **variables}

    def command(self, *words: str, module: str = "reread", **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            [sys.executable, "-m", module, *words], cwd=self.folder, env={**self.environment, **variables},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, *words: str, code: int = 0, **variables: str) -> str:
        process = self.command(*words, **variables)
        self.ran.append(words)
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == code, printed
        return printed

    def user(self, name: str) -> dict[str, str]:
        """The variables of a user, whose password is new."""
        lines = self.run("service", "user", name).split()
        return dict(line.split("=", 1) for line in lines)


@pytest.fixture(scope="module")
def postgres():
    if not programs():
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def store():
    with object_store() as (objects, variables):
        yield objects, variables


@pytest.fixture(scope="module")
def service(postgres, store, tmp_path_factory):
    """The running service, as `reread serve --service` starts it; it must end by SIGTERM with exit code 0."""
    folder = tmp_path_factory.mktemp("service")
    write_settings(folder / "service.env")
    ports = {"prefect_port": free_port(), "mlflow_port": free_port()}
    set_values(folder / "service.env", database=f"127.0.0.1:{postgres.port}", artifacts="s3://team/artifacts", **ports)
    service = Service(folder, store[1])
    for _ in range(2):  # a role that exists gets the password
        postgres.psql(service.run("service", "sql"))
    with open(folder / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "reread", "serve", "--service"], cwd=folder, env=service.environment,
            stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        while "Ctrl-C" not in (folder / "log.txt").read_text():
            assert process.poll() is None, (folder / "log.txt").read_text()
            time.sleep(0.2)
        service.process = process
        yield service
    finally:
        process.terminate()
        assert process.wait(60) == 0, (folder / "log.txt").read_text()


def own_processes(service: Service) -> list[psutil.Process]:
    return [service.process, *psutil.Process(service.process.pid).children(recursive=True)]


@pytest.mark.debian
def test_every_check_of_a_running_service_passes(service, store):
    assert "FAIL" not in service.run("service")
    checks = json.loads(service.run("service", "--json"))
    assert [check["name"] for check in checks if not check["passed"]] == []
    assert {"password of Prefect", "password of MLflow", "artifacts"} <= {check["name"] for check in checks}
    # The artifact of the check is removed.
    assert store[0] == {}
    # A part that does not work is told, and the exit code is 1.
    failed = service.run("service", "--json", code=1, REREAD_SERVICE_MLFLOW_PASSWORD="another password")
    assert [check["name"] for check in json.loads(failed) if not check["passed"]] == ["password of MLflow", "artifacts"]


@pytest.mark.debian
def test_nothing_is_open_without_a_password(service):
    settings = service.settings
    for auth in (None, "admin:password", "admin:password1234", "admin:", f"reread:{'x' * 12}"):
        for method, url in (
            ("GET", f"{settings.mlflow_page}/api/2.0/mlflow/experiments/search?max_results=1"),
            ("GET", f"{settings.mlflow_page}/api/2.0/mlflow-artifacts/artifacts?path="),
            ("GET", f"{settings.mlflow_page}/"),
            ("POST", f"{settings.prefect_page}/api/flow_runs/filter"),
        ):
            assert ask(method, url, auth)[0] == 401, (auth, url)
    listening = [
        connection.laddr.ip
        for process in own_processes(service)
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and set(listening) == {"127.0.0.1"}
    # Other users see command lines, and files that they may read.
    drawn = [getattr(settings, name).get_secret_value() for name in SECRETS]
    shown = [" ".join(psutil.Process(process.pid).cmdline()) for process in own_processes(service)]
    assert any("mlflow" in line for line in shown) and any("prefect" in line for line in shown)
    readable = [path for path in service.folder.rglob("*") if path.is_file() and path.stat().st_mode & 0o077]
    shown += [path.read_text(errors="replace") for path in readable]
    assert not [secret for secret in drawn if any(secret in text for text in shown)]


@pytest.mark.debian
def test_a_second_service_finds_the_ports_taken(service, tmp_path):
    shutil.copy(service.file, tmp_path / "service.env")
    printed = Service(tmp_path, {}).run("serve", "--service", code=2)
    assert printed.count("\n") == 1 and "REREAD_SERVICE_PREFECT_PORT" in printed
    # In the same folder, it is the same service.
    process = service.command("serve", "--service")
    line = next(line for line in process.stdout if "nothing to do" in line)
    assert line
    process.communicate(timeout=60)
    assert process.returncode == 0


@pytest.mark.debian
def test_users_share_experiments_and_only_an_administrator_deletes(service, store, tmp_path, monkeypatch):
    ada, bob = service.user("ada"), service.user("bob")
    assert ada["MLFLOW_TRACKING_PASSWORD"] != bob["MLFLOW_TRACKING_PASSWORD"]
    monkeypatch.setenv("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

    def as_user(user: dict[str, str]) -> MlflowClient:
        for name, value in user.items():
            monkeypatch.setenv(name, value)
        return MlflowClient(user["MLFLOW_TRACKING_URI"])

    experiment = as_user(ada).create_experiment("shared")
    client = as_user(bob)
    run = client.create_run(experiment).info.run_id
    client.log_metric(run, "accuracy", 0.5)
    (tmp_path / "report.txt").write_text("the report")
    client.log_artifact(run, str(tmp_path / "report.txt"))
    assert [path.path for path in client.list_artifacts(run)] == ["report.txt"]
    (kept,) = store[0].items()
    assert kept[0].startswith("/team/artifacts/") and kept[1] == b"the report"
    with pytest.raises(Exception, match="Permission denied"):
        client.delete_experiment(experiment)
    # A new password takes the place of the former one, at the latest when a login is checked again.
    service.run("service", "user", "bob", "--output", "bob.env", "--host", "tracking.example.org")
    again = (service.folder / "bob.env").read_text()
    assert f"PREFECT_API_URL=http://tracking.example.org:{service.settings.prefect_port}/api" in again
    password = re.search("MLFLOW_TRACKING_PASSWORD=(.*)", again)[1]
    assert ask("GET", f"{service.settings.mlflow_page}/", f"bob:{password}")[0] == 200
    left = service.run("service", "user", "bob", "--remove")
    # What bob still knows is named, and where it is changed.
    assert "REREAD_SERVICE_PREFECT_PASSWORD" in left and "service.env" in left
    assert "bob" in service.run("service", "user", "bob", "--remove", code=2)
    assert "admin" in service.run("service", "user", "admin", code=2)


@pytest.mark.debian
def test_a_file_of_passwords_is_its_owner_s_alone(service):
    def password(text: str) -> str:
        return dict(line.split("=", 1) for line in text.split())["MLFLOW_TRACKING_PASSWORD"]

    file = service.folder / "eve.env"
    printed = service.run("service", "user", "eve", "--output", str(file))
    given = password(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600 and given not in printed
    page = f"{service.settings.mlflow_page}/"
    assert ask("GET", page, f"eve:{given}")[0] == 200
    # Where the output cannot go, or others could read it, the password stays what it was.
    file.chmod(0o644)
    command = [sys.executable, "-m", "reread", "service", "user", "eve"]
    with open(file, "a") as shared:
        done = subprocess.run(
            command, cwd=service.folder, env=service.environment, stdout=shared, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "--output" in done.stderr
    for nowhere in ("missing/eve.env", "backups/.."):
        printed = service.run("service", "user", "eve", "--output", nowhere, code=2)
        assert printed.count("\n") == 1 and nowhere in printed
    assert password(file.read_text()) == given and ask("GET", page, f"eve:{given}")[0] == 200
    # An existing file is replaced, and is private then.
    service.run("service", "user", "eve", "--output", str(file))
    assert file.stat().st_mode & 0o777 == 0o600 and password(file.read_text()) != given
    service.run("service", "user", "eve", "--remove")


@pytest.mark.debian
def test_a_user_chooses_no_place_for_artifacts(service, tmp_path):
    settings = service.settings
    user = service.user("mallory")
    auth = f"mallory:{user['MLFLOW_TRACKING_PASSWORD']}"
    api = f"{settings.mlflow_page}/api/2.0/mlflow"
    places = (
        tmp_path.as_uri(),
        str(tmp_path),
        "s3://other/place",
        "mlflow-artifacts://elsewhere/1",
        "mlflow-artifacts:/1",
    )
    for number, place in enumerate(places):
        for name in ("artifact_location", "artifactLocation"):
            body = {"name": f"placed {number}{name}", name: place}
            status, text = ask("POST", f"{api}/experiments/create", auth, body)
            assert status == 400 and "artifact_location" in text, (place, text)
    listed = json.loads(ask("POST", f"{api}/experiments/search", auth, {"max_results": 1000})[1])
    assert not [experiment for experiment in listed["experiments"] if experiment["name"].startswith("placed")]
    # Without a place, an upload goes where the server keeps artifacts.
    experiment = json.loads(ask("POST", f"{api}/experiments/create", auth, {"name": "not placed"})[1])["experiment_id"]
    made = ask("POST", f"{api}/runs/create", auth, {"experiment_id": experiment})
    run = json.loads(made[1])["run"]["info"]
    assert run["artifact_uri"].startswith("mlflow-artifacts:/")
    path = f"ajax-api/2.0/mlflow/upload-artifact?run_uuid={run['run_id']}&path=file.txt"
    call(f"{settings.mlflow_page}/{path}", "text", auth)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.debian
def test_another_host_or_origin_is_refused_and_a_given_name_is_not(service, postgres, tmp_path):
    settings = service.settings
    pages = {
        f"{settings.prefect_page}/api/admin/version": settings.prefect_auth,
        f"{settings.mlflow_page}/api/2.0/mlflow/experiments/search?max_results=1": settings.mlflow_auth,
    }
    for url, auth in pages.items():
        for wrong in (
            {"Host": "10.evil.example"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "https://evil.example"},
        ):
            with pytest.raises(HTTPError, match="403"):
                call(url, auth=auth, **wrong)
        assert call(url, auth=auth)
    # Behind a proxy with TLS, under its name.
    shutil.copy(service.file, tmp_path / "service.env")
    ports = {"prefect_port": free_port(), "mlflow_port": free_port()}
    hosts = "tracking.example.org, other.example.org"
    set_values(tmp_path / "service.env", **ports, artifacts="artifacts", hosts=hosts, mlflow_workers=1)
    named = Service(tmp_path, {})
    with started(Project(tmp_path, named.environment), "-m", "reread", "serve", "--service", until="Ctrl-C"):
        for url, auth in (
            (f"{named.settings.prefect_page}/api/flows/filter", settings.prefect_auth),
            (f"{named.settings.mlflow_page}/ajax-api/2.0/mlflow/experiments/search", settings.mlflow_auth),
        ):
            host = {"Host": "tracking.example.org", "Origin": "https://tracking.example.org"}
            assert call(url, {"max_results": 1} if "mlflow" in url else {}, auth, **host) is not None
            with pytest.raises(HTTPError, match="403"):
                call(url, {}, auth, Host="evil.example")


def prefect_flow_runs(settings: ServiceSettings) -> set[str]:
    status, text = ask("POST", f"{settings.prefect_page}/api/flow_runs/filter", settings.prefect_auth, {})
    assert status == 200
    return {flow_run["id"] for flow_run in json.loads(text)}


def create_flow_runs(settings: ServiceSettings, count: int) -> None:
    api, auth = f"{settings.prefect_page}/api", settings.prefect_auth
    flow = json.loads(ask("POST", f"{api}/flows/", auth, {"name": "pipeline"})[1])["id"]
    for number in range(count):
        body = {"flow_id": flow, "name": f"run-{number}", "state": {"type": "COMPLETED"}}
        assert ask("POST", f"{api}/flow_runs/", auth, body)[0] == 201


def run_ids(client: MlflowClient) -> list[str]:
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    return [run.info.run_id for run in client.search_runs(experiments, max_results=1000)]


def runs_of(client: MlflowClient) -> dict[str, dict]:
    """Every run with its status, its tags, and each value of each metric."""
    by_run = {}
    for run_id in run_ids(client):
        run = client.get_run(run_id)
        history = {name: client.get_metric_history(run_id, name) for name in run.data.metrics}
        steps = {name: sorted((point.step, point.value) for point in values) for name, values in history.items()}
        by_run[run_id] = {"status": run.info.status, "tags": run.data.tags, "history": steps}
    return by_run


@pytest.mark.debian
def test_eight_workers_log_while_a_backup_is_made_and_a_restore_loses_no_run(service, monkeypatch):
    create_flow_runs(service.settings, 5)
    tracked = MlflowClient(service.settings.url("mlflow", "psycopg2"))
    before = runs_of(tracked)
    words = ["--workers", "8", "--seconds", "10"]
    load = service.command(*words, module="benchmarks.tracking_load", **service.user("carol"))
    while len(run_ids(tracked)) < len(before) + 8:
        assert load.poll() is None, load.stdout.read()
        time.sleep(0.1)
    service.run("service", "backup", "backups/during")
    # The figures come when all has been read back: an error or a metric that is lost is exit code 1.
    printed, _ = load.communicate(timeout=120)
    assert load.returncode == 0, printed
    figures = json.loads(printed.splitlines()[-1])
    assert figures["errors"] == figures["lost_metrics"] == 0 and figures["requests"] > 16
    assert "8 workers" in printed and figures["runs"] >= 8

    line = service.run("service", "backup", "backups/after")
    runs = runs_of(tracked)
    assert f"{len(runs):,} runs of MLflow, 5 flow runs of Prefect" in line
    assert {path.stat().st_mode & 0o077 for path in (service.folder / "backups/after").glob("*.dump")} == {0}

    flow_runs = prefect_flow_runs(service.settings)
    for backup in ("during", "after"):
        other = {"REREAD_SERVICE_DATABASE_PREFIX": backup}
        assert "as in the backup" in service.run("service", "restore", f"backups/{backup}", **other)
        monkeypatch.setenv("REREAD_SERVICE_DATABASE_PREFIX", backup)
        settings = read_settings(service.file)
        monkeypatch.delenv("REREAD_SERVICE_DATABASE_PREFIX")
        restored = runs_of(MlflowClient(settings.url("mlflow", "psycopg2")))
        if backup == "after":
            assert restored == runs
        else:  # what was logged by then, and nothing else
            assert set(before) < set(restored) <= set(runs)
            for run, about in restored.items():
                for name, history in about["history"].items():
                    assert history == runs[run]["history"][name][: len(history)]
        with psycopg2.connect(settings.url("prefect")) as connected, connected.cursor() as cursor:
            cursor.execute("SELECT id::text FROM flow_run")
            assert {row[0] for row in cursor.fetchall()} == flow_runs
        connected.close()

    # What has rows is not overwritten, and what is damaged is not restored.
    assert "after_prefect" in service.run("service", "restore", "backups/after", code=2, **other)
    dump = service.folder / "backups/after/mlflow.dump"
    content = bytearray(dump.read_bytes())
    content[len(content) // 2] ^= 1
    dump.write_bytes(content)
    damaged = service.run("service", "restore", "backups/after", code=2, REREAD_SERVICE_DATABASE_PREFIX="none")
    assert damaged.count("\n") == 1 and "mlflow.dump" in damaged


@pytest.mark.debian
def test_a_user_runs_an_experiment_and_serves_deployments_on_the_service(service, tmp_path, request):
    # Asked for here: with it among its arguments, this test would come first, and the service would not be new.
    finished = request.getfixturevalue("finished")
    databases = shutil.ignore_patterns("mlflow.db*", "mlartifacts", ".prefect", ".locks")
    shutil.copytree(finished.directory, tmp_path / "project", ignore=databases)
    user = service.user("dora")
    project = Project(tmp_path / "project", {**finished.environment, **user})
    project.run("python", "-m", "reread", "run", "--experiment", "tiny")
    service.ran += [("run", "--experiment"), ("serve",)]
    assert not (project.directory / "mlflow.db").exists()
    tracked = MlflowClient(service.settings.url("mlflow", "psycopg2"))
    experiment = tracked.get_experiment_by_name("tiny").experiment_id
    runs = [run for run in tracked.search_runs([experiment]) if "seed" in run.data.tags]
    assert len(runs) == 4 and {run.info.status for run in runs} == {"FINISHED"}
    settings = service.settings
    by_name = {"flow_runs": {"name": {"any_": ["tiny"]}}}
    flow_runs = ask("POST", f"{settings.prefect_page}/api/flow_runs/filter", settings.prefect_auth, by_name)[1]
    assert {flow_run["state_type"] for flow_run in json.loads(flow_runs)} == {"COMPLETED"}
    with started(project, "-m", "reread", "serve", until="Ctrl-C"):
        named = ask("POST", f"{settings.prefect_page}/api/deployments/filter", settings.prefect_auth, {})[1]
        assert {deployment["name"] for deployment in json.loads(named)} == {"default", "nightly", "variant"}
    assert project.processes() == {}


@pytest.mark.debian
def test_each_command_of_the_page_was_run(service):
    """docs/team.md, by the tests above: a command is known by its words without names and files."""
    page = (ROOT / "docs/team.md").read_text(encoding="utf-8")
    lines = [line for block in re.findall(r"```sh\n(.*?)```", page, re.DOTALL) for line in block.splitlines() if line]
    ran = {*service.ran, ("serve", "--service"), ("service", "init")}

    def known(words: list[str]) -> str:
        return " ".join(
            word for word in words if re.fullmatch(r"--\w+|run|serve|service|user|sql|init|backup|restore", word)
        )

    asked = {known(line.split(" | ")[0].split()[1:]) for line in lines if re.match("reread (run|serv)", line)}
    assert {"service init", "service backup", "service restore", "serve --service"} <= asked
    assert asked <= {known(list(words)) for words in ran}
    for line in lines:
        if not line.startswith(("reread ", "set -a", "python -m benchmarks.tracking_load")):
            assert line.split()[0] in ("sudo", "docker", "ssh"), line
            for path in re.findall(r"deploy/\S+", line):
                assert list(ROOT.glob(path)), path
