"""What `make doctor` says of a machine, each check on a folder or a PATH made for it."""

import ast
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from commands import diagnosis as doctor
from commands.diagnosis import MISSING, OK, OPTIONAL
from storage.files import sha256_file, write_json
from storage.locks import file_lock

ROOT = Path(__file__).resolve().parent.parent.parent
NEEDED = ("flows/__init__.py", "commands/doctor.py", "tasks/__init__.py", "commands/diagnosis.py")
CPU_TORCH = {"version": "2.13.0+cpu", "cuda": None, "gpu": False, "cpu": "AVX2", "kernels": None}
CUDA_TORCH = {"version": "2.13.0", "cuda": "13.0", "gpu": True, "cpu": "AVX2", "kernels": "extension 0123456789abcdef"}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project folder with no environment, no data and no programs on the PATH."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    return tmp_path


def install(name, said, code=0):
    """A program on the PATH that says something."""
    path = Path("bin", name)
    path.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("name", NEEDED)
def test_an_old_python_can_read_it(name):
    ast.parse((ROOT / name).read_text(), feature_version=(3, 9))


def test_it_runs_without_any_package_or_environment(tmp_path):
    for name in NEEDED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / name)
    start = "import runpy, sys; sys.path.insert(0, '.'); sys.argv = ['doctor']; "
    bare = [sys.executable, "-I", "-S", "-c", start + "runpy.run_module('commands.doctor', run_name='__main__')"]
    done = subprocess.run(bare, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and not done.stderr
    rows = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:1] not in (" ", "")}
    assert rows["virtual"] == MISSING and rows["packages"] == MISSING and rows["torch"] == MISSING
    assert rows["Python"] == OK and rows["memory"] in (OK, OPTIONAL)
    assert "-> make install" in done.stdout and "\033" not in done.stdout


def test_here_everything_that_is_required_is_there(monkeypatch):
    monkeypatch.chdir(ROOT)
    by_name = {finding.name: finding for finding in doctor.examine()}
    if Path(".venv").is_dir():
        assert by_name["packages"].state == OK, by_name["packages"]
        assert by_name["torch"].state == OK
    assert by_name["data/digits"].state == OK
    assert all(finding.mend for finding in by_name.values() if finding.state == MISSING)


@pytest.mark.parametrize(
    ("version", "state"), [("3.9.18", MISSING), ("3.11.7", OK), ("3.12.1", OK), ("3.14.0", OPTIONAL)]
)
def test_the_python_of_the_environment_counts(folder, version, state):
    Path(".venv").mkdir()
    Path(".venv/pyvenv.cfg").write_text(f"home = /usr\nversion = {version}\n")
    found = doctor.python()
    assert (found.state, version in found.found, bool(found.mend)) == (state, True, state != OK)


def test_an_environment_whose_python_is_gone_is_made_anew(folder):
    assert doctor.environment().mend == "make install"
    Path(".venv/bin").mkdir(parents=True)
    Path(".venv/bin/python").symlink_to("/nowhere/python3.11")
    assert (doctor.environment().state, doctor.environment().mend) == (MISSING, "rm -rf .venv && make install")


def test_packages_are_held_against_the_lock_file(folder):
    assert doctor.packages().mend == "git checkout requirements.lock"
    Path("requirements.lock").write_text(
        "# made by uv\nalpha-one==1.0 \\\n    --hash=sha256:00\nbeta==2.0 ; x == 'y' \\\n"
    )
    assert doctor.packages().mend == "make install"
    site = Path(".venv/lib/python3.11/site-packages")
    for name, version in (("Alpha_One", "1.0"), ("beta", "2.1")):
        (site / f"{name}-{version}.dist-info").mkdir(parents=True)
        (site / f"{name}-{version}.dist-info" / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    found = doctor.packages()
    assert found.state == MISSING and "beta 2.1" in found.found and "alpha" not in found.found
    Path("requirements.lock").write_text("alpha-one==1.0\nbeta==2.1\n")
    assert doctor.packages().state == OK


def test_torch_without_cuda_beside_a_gpu_is_told(folder):
    assert doctor.torch_build({}).state == MISSING
    assert doctor.torch_build(CPU_TORCH).state == OK
    assert "2.13.0" in doctor.torch_build({**CPU_TORCH, "version": "2.11.0"}).mend
    assert doctor.gpu(CPU_TORCH).state == OPTIONAL
    install("nvidia-smi", "NVIDIA H100, 580.10, 81559 MiB")
    assert doctor.gpu(CUDA_TORCH) == doctor.Finding("GPU", OK, "NVIDIA H100, 580.10, 81559 MiB")
    assert "without CUDA" in doctor.gpu(CPU_TORCH).found
    assert "driver" in doctor.gpu({**CUDA_TORCH, "gpu": False}).mend
    install("nvidia-smi", "no driver", code=9)
    assert doctor.gpu(CUDA_TORCH).found.startswith("none")


def test_a_gpu_without_a_library_of_kernels_is_told_how_to_build_it():
    assert doctor.kernels(CUDA_TORCH) == doctor.Finding("kernels", OK, "extension 0123456789abcdef")
    missing = doctor.kernels({**CUDA_TORCH, "kernels": "reference (the library is not built: run `make ext`)"})
    assert (missing.state, missing.mend) == (OPTIONAL, "make ext")
    assert doctor.kernels(CPU_TORCH).state == OK


def test_nvcc_must_fit_the_cuda_of_torch(folder):
    assert doctor.nvcc(CUDA_TORCH).state == OPTIONAL
    install("nvcc", "Cuda compilation tools, release 13.2, V13.2.1")
    assert doctor.nvcc(CUDA_TORCH).state == OK
    assert doctor.nvcc(CPU_TORCH).state == OK
    install("nvcc", "Cuda compilation tools, release 12.8, V12.8.1")
    assert doctor.nvcc(CUDA_TORCH).state == OPTIONAL and "13.0" in doctor.nvcc(CUDA_TORCH).mend


def test_chromium_and_its_driver_must_fit_each_other(folder):
    assert "no Chromium" in doctor.browser().found
    install("chromium", "Chromium 156.0.1 built on Debian")
    assert "no chromedriver" in doctor.browser().found
    install("chromedriver", "ChromeDriver 155.0.2 (abc)")
    assert doctor.browser().state == OPTIONAL and "apt-get" in doctor.browser().mend
    install("chromedriver", "ChromeDriver 156.0.2 (abc)")
    assert doctor.browser().state == OK


def test_programs(folder):
    assert doctor.program("make", MISSING).mend == "apt-get install make"
    install("make", "")
    assert doctor.program("make", MISSING).state == OK


def test_a_dvc_remote_must_verify(folder):
    assert doctor.dvc_remote().state == OPTIONAL
    Path(".dvc").mkdir()
    Path(".dvc/config").write_text("[core]\n    remote = big\n['remote \"big\"']\n    url = /somewhere/%20\n")
    assert doctor.dvc_remote().mend.endswith("modify big verify true")
    Path(".dvc/config.local").write_text("['remote \"big\"']\n    verify = true\n")
    assert doctor.dvc_remote() == doctor.Finding("DVC remote", OK, "big")


def test_data_is_held_against_the_manifest_by_size_or_by_every_byte(folder):
    assert doctor.data(False)[0].mend == "git checkout data.manifest.json"
    file = Path("data/dots/images.npy")
    file.parent.mkdir(parents=True)
    file.write_bytes(b"0123")
    about = {"bytes": 4, "sha256": sha256_file(file), "rows": 1}
    write_json(Path("data.manifest.json"), {"datasets": {"dots": {"files": {file.name: about}}}})
    assert [one.state for one in doctor.data(True)] == [OK]
    file.write_bytes(b"0124")
    assert doctor.data(False)[0].state == OK
    assert doctor.data(True)[0].state == MISSING and "images.npy" in doctor.data(True)[0].found
    file.write_bytes(b"012")
    assert doctor.data(False)[0].mend.startswith("rm -r data/dots && ")
    file.unlink()
    assert "missing" in doctor.data(False)[0].found
    Path("data.manifest.json").write_text("{")
    assert "broken" in doctor.data(False)[0].found


def test_a_port_is_free_ours_or_somebody_elses(folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        number = listener.getsockname()[1]
    asked = ("MLflow", number, "--mlflow-port", "/health")
    assert doctor.port(*asked).state == OK
    answering = "import http.server, sys; http.server.test(http.server.SimpleHTTPRequestHandler, port=int(sys.argv[1]))"
    Path("health").write_text("OK")
    server = subprocess.Popen(
        [sys.executable, "-c", answering, str(number)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while doctor.port(*asked).state == OK:
            assert server.poll() is None
        found = doctor.port(*asked)
        assert "not started from this folder" in found.found and "--mlflow-port" in found.mend
        Path("health").unlink()
        assert doctor.port(*asked).found == "taken by another program"
        with file_lock(Path(".locks") / f"port-{number}.lock"):
            assert doctor.port(*asked).state == OK
    finally:
        server.kill()
        server.wait()


def test_little_disk_memory_or_one_core_are_told(folder, monkeypatch):
    assert doctor.disk().state in (OK, MISSING)
    usage = shutil._ntuple_diskusage(10**12, 10**12, 10**8)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert doctor.disk().state == MISSING
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0})
    assert "REREAD_WORKERS=1" in doctor.cores().mend
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 2**18}
    monkeypatch.setattr("os.sysconf", pages.__getitem__)
    assert "1.0 GiB" in doctor.memory().found and doctor.memory().state == OPTIONAL


def test_what_torch_says_is_read(folder):
    Path(".venv/bin").mkdir(parents=True)
    install("python-for-test", json.dumps(CUDA_TORCH))
    Path("bin/python-for-test").rename(".venv/bin/python")
    assert doctor.ask_torch() == CUDA_TORCH
