"""The report of `make doctor` on a machine, each check in a folder or with a PATH made for it."""

import ast
import json
import shutil
import socket
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from reread.commands import doctor, preflight
from reread.commands.doctor import MISSING, OK, OPTIONAL
from reread.commands.servers import port_lock
from reread.storage.files import sha256_file, write_json
from reread.storage.ledger import LEDGER
from reread.storage.locks import file_lock
from reread.storage.source import ROOT
from tests.reread.commands.conftest import make_folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project folder with no environment, no data and no programs on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path


def install(name, printed, code=0):
    """A program on the PATH that prints something."""
    path = Path("bin", name)
    path.write_text(f"#!/bin/sh\necho '{printed}'\nexit {code}\n")
    path.chmod(0o755)


def make_environment(version):
    Path(".venv/bin").mkdir(parents=True)
    Path(".venv/pyvenv.cfg").write_text(f"home = /usr\nversion = {version}\n")
    Path(".venv/bin/python").symlink_to(sys.executable)
    Path(".venv/installed").touch()


def test_before_there_is_an_environment_the_command_that_makes_it_is_printed(tmp_path):
    path = ROOT / "reread/commands" / "preflight.py"
    ast.parse(path.read_text(), feature_version=(3, 9))
    done = subprocess.run([sys.executable, "-I", "-S", path], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr and "-> make install" in done.stdout


def test_make_doctor_checks_the_environment_first(folder):
    make = shutil.which("make", path="/usr/bin:/bin")
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "reread").symlink_to(ROOT / "reread")
    done = subprocess.run(
        [make, "doctor", f"SYSTEM_PYTHON={sys.executable}"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 2 and "-> make install" in done.stdout


def test_an_environment_of_an_old_python_or_a_broken_one_is_made_again(folder):
    make_environment("3.11.7")
    assert preflight.problem() is None
    Path(".venv/installed").unlink()
    assert preflight.problem()[1] == "make install"
    Path(".venv/bin/python").unlink()
    assert preflight.problem()[1] == "rm -rf .venv && make install"
    Path(".venv/pyvenv.cfg").write_text("version = 3.9.18\n")
    assert "3.9" in preflight.problem()[0] and preflight.problem()[1].startswith("rm -rf .venv; ")


def test_an_environment_of_another_folder_is_made_again(folder):
    (folder / "old").mkdir()
    venv.create(folder / "old/.venv")
    Path("old/.venv/installed").touch()
    assert preflight.problem("old/.venv") is None
    Path("old").rename("new")
    assert preflight.problem("new/.venv")[1] == "rm -rf new/.venv && make install"
    # The command of the old environment, where that is still there.
    assert doctor.source().state == OK
    Path("reread/commands").mkdir(parents=True)
    assert doctor.source().state == MISSING and str(ROOT) in doctor.source().detail


def test_each_problem_is_printed_with_its_fix(reread):
    # The shared folder has no lock file.
    checks = {check["name"]: check for check in json.loads(reread("doctor", "--json", code=1))}
    assert checks["packages"]["state"] == MISSING
    assert checks["torch"]["state"] == OK and checks["data/digits"]["state"] == OK
    assert all(check["fix"] for check in checks.values() if check["state"] == MISSING)


def test_packages_are_compared_with_the_lock_file(folder):
    assert doctor.packages().fix == "git checkout requirements.lock"
    site = folder / "site-packages"
    for name, version in (("Alpha_One", "1.0"), ("beta", "2.1")):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    lock = Path("requirements.lock")
    lock.write_text("# made by uv\nalpha-one==1.0 \\\n    --hash=sha256:00\nbeta==2.0 ; x == 'y' \\\n")
    check = doctor.packages([str(site)])
    assert check.state == MISSING and "beta 2.1" in check.detail and "alpha" not in check.detail
    lock.write_text("alpha-one==1.0\nbeta==2.1\n")
    assert doctor.packages([str(site)]).state == OK


@pytest.mark.parametrize(
    ("cuda", "nvcc", "state"),
    [(None, "", OPTIONAL), (None, "12.8", OK), ("13.0", "13.2", OK), ("13.0", "12.8", OPTIONAL)],
)
def test_nvcc_must_fit_the_cuda_of_torch(folder, monkeypatch, cuda, nvcc, state):
    monkeypatch.setattr("torch.version.cuda", cuda)
    if nvcc:
        install("nvcc", f"Cuda compilation tools, release {nvcc}, V{nvcc}.1")
    checks = {check.name: check for check in doctor.accelerator()}
    assert checks["nvcc"].state == state and bool(checks["nvcc"].fix) == (state != OK)
    assert checks["torch"].state == OK and checks["GPU"].state in (OK, OPTIONAL)


def test_a_gpu_that_torch_does_not_reach_is_reported(folder, monkeypatch):
    monkeypatch.setattr("torch.utils.collect_env.get_nvidia_driver_version", lambda run: "580.10")
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for cuda, fix in ((None, "requirements-cuda.lock"), ("13.0", "driver for CUDA 13.0")):
        monkeypatch.setattr("torch.version.cuda", cuda)
        (check,) = (check for check in doctor.accelerator() if check.name == "GPU")
        assert check.state == OPTIONAL and fix in check.fix


def test_chromium_and_its_driver_must_fit_each_other(folder):
    assert "chromium missing" in doctor.browser().detail
    install("chromium", "Chromium 156.0.1 built on Debian")
    assert "chromedriver missing" in doctor.browser().detail
    install("chromedriver", "ChromeDriver 155.0.2 (abc)")
    assert doctor.browser().state == OPTIONAL and "apt-get" in doctor.browser().fix
    install("chromedriver", "ChromeDriver 156.0.2 (abc)")
    assert doctor.browser().state == OK


def test_a_dvc_remote_must_verify(folder):
    assert doctor.dvc_remote().state == OPTIONAL
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n    remote = big\n['remote \"big\"']\n    url = /somewhere/%20\n")
    assert doctor.dvc_remote().fix.endswith("modify big verify true")
    Path(".dvc/config.local").write_text("['remote \"big\"']\n    verify = true\n")
    assert doctor.dvc_remote() == doctor.Check("DVC remote", OK, "big")


def test_data_is_compared_with_the_manifest_by_size_or_by_every_byte(folder):
    file = Path("data/digits/images.npy")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0123")
    entry = json.loads((ROOT / "data.manifest.json").read_text())
    about = {"bytes": 4, "sha256": sha256_file(file), "rows": 1}
    entry["datasets"] = {"digits": {**entry["datasets"]["digits"], "files": {file.name: about}}}
    write_json(Path("data.manifest.json"), entry)
    assert [check.state for check in doctor.data(True)] == [OK]
    file.write_bytes(b"0124")
    assert [check.state for check in doctor.data(False)] == [OK]
    for content, thorough in ((b"0124", True), (b"012", False)):
        file.write_bytes(content)
        (check,) = doctor.data(thorough)
        assert check.state == MISSING and "images.npy" in check.detail and "reread data digits" in check.fix
    Path("data.manifest.json").write_text("{")
    assert "data.manifest.json" in next(doctor.data(False)).detail


def test_a_port_is_free_ours_or_another_programs(folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.getsockname()[1]
        listener.listen()
        assert "--mlflow-port" in doctor.port("MLflow", number, "--mlflow-port").fix
        with file_lock(port_lock(number)):
            assert doctor.port("MLflow", number, "--mlflow-port").state == OK
    assert doctor.port("MLflow", number, "--mlflow-port").state == OK


def test_little_disk_memory_or_one_core_is_reported(folder, monkeypatch):
    assert {check.name for check in doctor.machine()} == {"disk", "memory", "cores"}
    usage = psutil.disk_usage(".")._replace(free=10**8)
    monkeypatch.setattr(psutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(psutil.Process, "cpu_affinity", lambda _: [0])
    memory = psutil.virtual_memory()._replace(total=2**30)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    checks = {check.name: check for check in doctor.machine()}
    assert checks["disk"].state == MISSING
    assert "REREAD_WORKERS=1" in checks["cores"].fix and "REREAD_WORKERS=1" in checks["memory"].fix


def test_what_commands_refuse_is_missing_in_their_words(reread, tmp_path, monkeypatch):
    monkeypatch.chdir(make_folder(tmp_path))
    (tmp_path / "results").mkdir()
    lines = (ROOT / LEDGER).read_text(encoding="utf-8").splitlines()
    assert [doctor.parameters().state, doctor.ledger().state] == [OK, OK]
    Path("params.yaml").write_text("a: [")
    LEDGER.write_text("\n".join([lines[0], *lines[2:]]), encoding="utf-8")
    Path("data.manifest.json").unlink()
    checks = [doctor.parameters(), doctor.ledger(), *doctor.data(False)]
    assert [check.state for check in checks] == [MISSING] * len(checks)
    assert all(check.fix.startswith("git checkout ") for check in checks)
    assert f"error: {checks[0].detail}\n" == reread("train", "--experiment", "tiny", code=2)
    assert f"error: {checks[1].detail}\n" == reread("ledger", code=2)
    (digits,) = (check for check in checks if check.name == "data/digits")
    assert f"error: {digits.detail}\n" == reread("data", "digits", code=2)
