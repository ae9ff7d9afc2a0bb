"""`make install` takes the build of torch that pip finds, and refuses one whose hash is not locked."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import wheels
from tests.wheels import wheel

ROOT = Path(__file__).resolve().parent.parent
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "reread"
version = "0"
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """A project whose locks have the wheels of ``tmp_path``/wheels: torch as a CPU and as a CUDA build."""
    directory = tmp_path / "wheels"
    directory.mkdir()
    shutil.copy2(ROOT / "Makefile", tmp_path)
    shutil.copy2(wheels.__file__, tmp_path / "backend.py")
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (tmp_path / "requirements.lock").write_text(wheel(directory, "filelock", "1.0"))
    (tmp_path / "requirements-cpu.lock").write_text(wheel(directory, "torch", "2.13.0+cpu", "filelock"))
    cuda = [wheel(directory, "torch", "2.13.0", "nvidia-nccl"), wheel(directory, "nvidia-nccl", "2.0")]
    (tmp_path / "requirements-cuda.lock").write_text("".join(cuda))
    return tmp_path


def install(folder: Path) -> tuple[int, dict[str, str]]:
    """Run `make install` with these wheels alone; return its exit code and what is installed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "MAKE"))}
    alone = {**clean, "PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder / "wheels")}
    command = ["make", f"{folder}/.venv/installed", f"SYSTEM_PYTHON={sys.executable}"]
    done = subprocess.run(command, cwd=folder, env=alone, capture_output=True, text=True)
    listing = [folder / ".venv/bin/python", "-m", "pip", "list", "--format", "json"]
    listed = subprocess.run(listing, env=alone, capture_output=True, check=True)
    return done.returncode, {package["name"]: package["version"] for package in json.loads(listed.stdout)}


def test_the_cpu_build_is_installed_where_pip_finds_it(folder):
    code, installed = install(folder)
    assert (
        code == 0 and installed["torch"] == "2.13.0+cpu" and "nvidia-nccl" not in installed and "filelock" in installed
    )


def test_the_cuda_build_comes_with_its_packages_where_pip_finds_no_other(folder):
    next((folder / "wheels").glob("*+cpu*")).unlink()
    code, installed = install(folder)
    assert code == 0 and installed["torch"] == "2.13.0" and installed["nvidia-nccl"] == "2.0"


def test_a_folder_of_the_package_s_name_does_not_hide_it(tmp_path):
    """As the folder of a clone does, where Python starts above it."""
    (tmp_path / "reread").mkdir()
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    imported = [sys.executable, "-c", "import reread; print(reread.__file__)"]
    done = subprocess.run(imported, cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert Path(done.stdout.strip()) == ROOT / "reread/__init__.py", done.stderr


@pytest.mark.parametrize("altered", [("torch", "2.13.0+cpu"), ("filelock", "1.0")])
def test_another_wheel_than_the_locked_one_is_refused(folder, altered):
    name, version = altered
    wheel(folder / "wheels", name, version, "filelock" if name == "torch" else "pip")
    if name == "torch":
        wheel(folder / "wheels", name, version)
    code, installed = install(folder)
    assert (
        code != 0 and name not in installed and "torch" not in installed and not (folder / ".venv/installed").exists()
    )
