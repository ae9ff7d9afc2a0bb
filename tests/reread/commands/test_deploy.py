"""The files of deploy/: containers and units that parse, start commands that exist, and no password among them."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from reread.commands.app import file_of, load
from reread.commands.service_settings import PREFIX, ServiceSettings, write_settings
from tests.conftest import ROOT

DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
UNITS = sorted((DEPLOY / "systemd").iterdir())
# systemd's own measure, 0 (safe) to 10.
EXPOSURE = 45


def parses(words: list[str]) -> None:
    """Pass where the words after `reread` are a command with options that it has."""
    name, rest = file_of(words[0], words[1:])
    load(name).make_context(name, rest).close()


def test_compose_follows_its_schema(tmp_path):
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert subprocess.run([*check, DEPLOY / "compose.yaml"], capture_output=True).returncode == 0
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DEPLOY / "compose.yaml").read_text().replace("depends_on:", "depends:"))
    assert subprocess.run([*check, wrong], capture_output=True).returncode == 1


def test_compose_publishes_on_this_machine_alone_and_has_no_password(tmp_path):
    text = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
    assert "ports" not in COMPOSE["services"]["database"]
    assert all(port.startswith("127.0.0.1:") for port in COMPOSE["services"]["servers"]["ports"])
    write_settings(tmp_path / "service.env")
    # Each variable is one of the settings; one without a default must be given.
    known = {f"{PREFIX}{name.upper()}" for name in ServiceSettings.model_fields}
    used = dict(re.findall(r"\$\{(\w+)(:[?-])", text))
    assert used["REREAD_SERVICE_DATABASE_PASSWORD"] == ":?"
    assert set(used) | set(COMPOSE["services"]["servers"]["environment"]) <= known
    assert not [line for line in text.splitlines() if "PASSWORD" in line and "${" not in line]
    # The tools of PostgreSQL in the image are of the server's version, or it makes no backup.
    assert COMPOSE["services"]["database"]["image"] == "postgres:15-bookworm"
    assert "FROM python:3.11-slim-bookworm\n" in (DEPLOY / "Dockerfile").read_text()


def test_the_commands_of_the_containers_exist_and_the_image_has_what_they_import():
    words = re.search(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[1]
    for command in (yaml.safe_load(words), COMPOSE["services"]["servers"]["healthcheck"]["test"][1:]):
        assert command[:3] == ["python", "-m", "reread"]
        parses(command[3:])
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = {line[1:] for line in ignored if line.startswith("!")}
    modules = (
        "databases service service_backup service_init service_restore service_servers service_sql service_user serve"
    )
    names = [f"reread.commands.{name}" for name in modules.split()] + [
        "reread.commands.app",
        "reread.commands.prefect_server",
        "reread.tracking.runs",
        "reread.tracking.server",
    ]
    code = "import sys; sys.modules['torch'] = None\n" + "".join(f"import {name}\n" for name in names)
    code += "files = {getattr(module, '__file__', None) or '' for module in sys.modules.values()}\n"
    code += f"print(*(file for file in files if file.startswith({str(ROOT) + '/'!r}) and '/.venv/' not in file))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    files = [Path(file).relative_to(ROOT) for file in done.stdout.split()]
    assert files and all({str(path) for path in (file, *file.parents)} & copied for file in files)


def setting(unit: Path, name: str) -> str:
    """The value of a setting that a unit has once."""
    (value,) = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return value


def test_a_flow_of_the_worker_reaches_nothing_of_the_service():
    """A flow run is any command, and service.env has every password."""
    service, worker = (DEPLOY / f"systemd/reread-{name}.service" for name in ("service", "worker"))
    assert setting(service, "User") != setting(worker, "User")
    assert setting(service, "UMask") == "0077"
    folder = setting(service, "WorkingDirectory")
    assert Path(setting(service, "EnvironmentFile")).is_relative_to(folder)
    assert setting(worker, "InaccessiblePaths") == f"-{folder}"
    for name in ("WorkingDirectory", "EnvironmentFile", "ReadWritePaths"):
        assert not Path(setting(worker, name)).is_relative_to(folder)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.name)
def test_a_unit_starts_a_command_that_exists_and_is_confined(unit):
    program, *words = shlex.split(setting(unit, "ExecStart"))
    assert program == f"{setting(unit, 'WorkingDirectory')}/.venv/bin/reread"
    parses(words)
    assert setting(unit, "ReadWritePaths") == setting(unit, "WorkingDirectory")
    assert setting(unit, "User") not in ("", "root")
    if shutil.which("systemd-analyze"):
        security = ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", unit]
        done = subprocess.run(security, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout


@pytest.mark.debian
def test_systemd_accepts_the_units(tmp_path):
    """Their program is not installed here: a copy names one that is."""
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd is not installed: apt-get install systemd")

    def verify(change: str = "") -> str:
        for unit in UNITS:
            text = re.sub(r"/opt/\S+/bin/reread", sys.executable, unit.read_text())
            (tmp_path / unit.name).write_text(text.replace("Type=", change) if change else text)
        command = ["systemd-analyze", "verify", "--man=no", *(tmp_path / unit.name for unit in UNITS)]
        done = subprocess.run(command, capture_output=True, text=True)
        return done.stderr

    assert verify() == ""
    assert "Typ" in verify("Typ=")
