"""What this project needs and what there is of it. Standard library alone, and also read by Python 3.9.

Each check returns a Finding: ``ok``, ``missing`` (the project does not run without it) or ``optional`` (something
is left out or skipped without it), and the command that mends it. Nothing is changed and nothing is installed.
"""

from __future__ import annotations

import configparser
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
VENV = Path(".venv")
PYTHON = VENV / "bin" / "python"
PIP = ".venv/bin/pip"
LOCK_FILE = Path("requirements.lock")
MANIFEST = Path("data.manifest.json")
OLDEST, NEWEST = (3, 11), (3, 12)
GIGABYTE = 10**9
GIBIBYTE = 2**30
ASK_TORCH = """
import json, torch
from cuda_ext import library
gpu = torch.cuda.is_available()
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "gpu": gpu,
                  "cpu": torch.backends.cpu.get_cpu_capability(),
                  "kernels": library.kernels(torch.device("cuda", 0)) if gpu else None}))
"""


@dataclass(frozen=True)
class Finding:
    """``name`` of what was looked for, its ``state``, what was ``found``, and the command that mends it."""

    name: str
    state: str
    found: str
    mend: str = ""


def examine(thorough: bool = False) -> list[Finding]:
    """Every check, in the order in which they build on each other. ``thorough`` reads the bytes of data/."""
    torch = ask_torch()
    return [
        python(),
        environment(),
        packages(),
        torch_build(torch),
        gpu(torch),
        nvcc(torch),
        compiler(),
        kernels(torch),
        program("git", MISSING),
        program("make", MISSING),
        browser(),
        dvc_remote(),
        *data(thorough),
        port("Prefect", 4200, "--prefect-port", "/api/health"),
        port("MLflow", 5000, "--mlflow-port", "/health"),
        disk(),
        memory(),
        cores(),
    ]


def python() -> Finding:
    """The Python of the environment, or where there is none yet the one that would make it."""
    version, where = sys.version_info[:3], sys.executable
    settings = VENV / "pyvenv.cfg"
    if settings.is_file():
        found = re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)\.(\d+)", settings.read_text(), re.MULTILINE)
        if found:
            version, where = tuple(map(int, found.groups())), str(VENV)
    said = f"{'.'.join(map(str, version))} in {where}"
    anew = "rm -rf .venv; " if settings.is_file() else ""
    if version[:2] < OLDEST:
        install = f"{anew}apt-get install python3.11 python3.11-venv (or: pyenv install 3.11), then make install"
        return Finding("Python", MISSING, f"{said}, 3.11 or 3.12 is needed", install)
    if version[:2] > NEWEST:
        return Finding("Python", OPTIONAL, f"{said}, tried with 3.11 and 3.12 alone", f"{anew}install Python 3.11")
    return Finding("Python", OK, said)


def environment() -> Finding:
    name = "virtual environment"
    if not VENV.exists():
        try:
            import ensurepip  # noqa: F401
        except ImportError:
            minor = f"python3.{sys.version_info[1]}"
            return Finding(name, MISSING, "not made, and venv is missing", f"apt-get install {minor}-venv")
        return Finding(name, MISSING, "not made yet", "make install")
    if not os.access(PYTHON, os.X_OK):
        return Finding(name, MISSING, f"{PYTHON} does not start", "rm -rf .venv && make install")
    return Finding(name, OK, str(VENV.resolve()))


def packages() -> Finding:
    """The packages in the environment against the lock file."""
    if not LOCK_FILE.is_file():
        return Finding("packages", MISSING, f"{LOCK_FILE} is missing", f"git checkout {LOCK_FILE}")
    wanted = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", LOCK_FILE.read_text(), re.MULTILINE))
    folders = [str(folder) for folder in VENV.glob("lib/python3*/site-packages")]
    found = {_plain(one.metadata["Name"]): one.version for one in distributions(path=folders)} if folders else {}
    wrong = [
        f"{name} {found.get(_plain(name), 'missing')}" for name in wanted if found.get(_plain(name)) != wanted[name]
    ]
    if not found:
        return Finding("packages", MISSING, f"none of {len(wanted)}", "make install")
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        mend = "rm -f .venv/installed && make install"
        return Finding("packages", MISSING, f"not as in {LOCK_FILE}: {', '.join(wrong[:3])}{more}", mend)
    return Finding("packages", OK, f"{len(wanted)} as in {LOCK_FILE}")


def ask_torch() -> dict:
    """What torch in the environment says of itself; empty where it does not start."""
    said = output(str(PYTHON), "-c", ASK_TORCH) if PYTHON.exists() else ""
    return json.loads(said.splitlines()[-1]) if said else {}


def pinned_torch() -> str:
    """The version of torch that pyproject.toml names."""
    found = re.search(r'"torch==([\d.]+)"', Path("pyproject.toml").read_text(encoding="utf-8"))
    return found.group(1) if found else "unknown"


def torch_build(torch: dict) -> Finding:
    if not torch:
        return Finding("torch", MISSING, "does not start", "make install")
    built = f"CUDA {torch['cuda']}" if torch["cuda"] else "no CUDA"
    said = f"{torch['version']}, {built}, CPU {torch['cpu']}"
    wanted = pinned_torch()
    if torch["version"].split("+")[0] != wanted:
        return Finding("torch", OPTIONAL, f"{said}; the lock file goes with {wanted}", f"{PIP} install torch=={wanted}")
    return Finding("torch", OK, said)


def gpu(torch: dict) -> Finding:
    """The GPUs and their driver, and whether torch reaches them."""
    query = "--query-gpu=name,driver_version,memory.total"
    listed = output("nvidia-smi", query, "--format=csv,noheader")
    if not listed:
        return Finding("GPU", OPTIONAL, "none (nvidia-smi names none): training runs on the CPU")
    said = "; ".join(listed.splitlines())
    if torch and not torch["cuda"]:
        build = f"{PIP} install --index-url https://pypi.org/simple torch=={pinned_torch()}"
        return Finding("GPU", OPTIONAL, f"{said}; torch is built without CUDA", f"{PIP} uninstall -y torch && {build}")
    if torch and not torch["gpu"]:
        return Finding("GPU", OPTIONAL, f"{said}; torch does not reach it", f"a driver for CUDA {torch['cuda']}")
    return Finding("GPU", OK, said)


def nvcc(torch: dict) -> Finding:
    """The CUDA compiler; its version must have the same major number as torch's CUDA."""
    found = re.search(r"release (\d+)\.(\d+)", output("nvcc", "--version"))
    if not found:
        return Finding("nvcc", OPTIONAL, "none: the reference kernels are used", "apt-get install nvidia-cuda-toolkit")
    said = ".".join(found.groups())
    if not torch or not torch["cuda"]:
        return Finding("nvcc", OK, f"{said} (torch has no CUDA to fit)")
    if torch["cuda"].split(".")[0] != found.group(1):
        mend = f"install the CUDA toolkit {torch['cuda']}"
        return Finding("nvcc", OPTIONAL, f"{said} does not fit torch's CUDA {torch['cuda']}", mend)
    return Finding("nvcc", OK, f"{said}, fits torch's CUDA {torch['cuda']}")


def compiler() -> Finding:
    path = shutil.which("g++") or shutil.which("c++")
    if not path:
        return Finding("C++ compiler", OPTIONAL, "none: no kernel can be built", "apt-get install g++")
    return Finding("C++ compiler", OK, path)


def kernels(torch: dict) -> Finding:
    """The library of cuda_ext/, which only a GPU needs."""
    if not torch or not torch["gpu"]:
        return Finding("kernels", OK, "no GPU to run them: their references in PyTorch do")
    built = torch["kernels"].startswith("extension")
    return Finding("kernels", OK if built else OPTIONAL, torch["kernels"], "" if built else "make ext")


def program(name: str, otherwise: str) -> Finding:
    path = shutil.which(name)
    return Finding(name, OK, path) if path else Finding(name, otherwise, "not found", f"apt-get install {name}")


def browser() -> Finding:
    """Chromium and its driver, of one version: tests drive MLflow's pages with them."""
    mend = "apt-get install chromium chromium-driver"
    versions = {}
    for name, commands in {"Chromium": ("chromium", "chromium-browser", "google-chrome"),
                           "chromedriver": ("chromedriver",)}.items():  # fmt: skip
        command = next(filter(shutil.which, commands), "")
        found = re.search(r"(\d+)\.[\d.]+", output(command, "--version")) if command else None
        if not found:
            return Finding("Chromium", OPTIONAL, f"no {name}: tests of pages are skipped", mend)
        versions[name] = found
    said = ", ".join(f"{name} {found.group()}" for name, found in versions.items())
    if len({found.group(1) for found in versions.values()}) > 1:
        return Finding("Chromium", OPTIONAL, f"{said}: they do not fit each other", mend)
    return Finding("Chromium", OK, said)


def dvc_remote() -> Finding:
    """Where DVC keeps data/ for others, and whether it checks what it fetches."""
    settings = configparser.ConfigParser(interpolation=None)
    settings.read([".dvc/config", ".dvc/config.local"])
    remotes = {name.strip("'"): settings[name] for name in settings.sections() if name.strip("'").startswith("remote ")}
    dvc = ".venv/bin/dvc remote"
    if not remotes:
        mend = f"{dvc} add --default storage URL && {dvc} modify storage verify true"
        return Finding("DVC remote", OPTIONAL, "none: data/ is built on each machine", mend)
    names = [name.split('"')[1] for name in remotes]
    for name, remote in zip(names, remotes.values()):  # noqa: B905 (Python 3.9 knows no strict)
        if remote.get("verify", "false").lower() != "true":
            mend = f"{dvc} modify {name} verify true"
            return Finding("DVC remote", OPTIONAL, f"{name}: what is fetched from it is not checked", mend)
    return Finding("DVC remote", OK, ", ".join(names))


def data(thorough: bool) -> list[Finding]:
    """A finding a data set: the files of data/ against the manifest, by size or by sha256."""
    if not MANIFEST.is_file():
        return [Finding("data", MISSING, f"{MANIFEST} is missing", f"git checkout {MANIFEST}")]
    try:
        known = json.loads(MANIFEST.read_text(encoding="utf-8"))["datasets"]
    except (ValueError, KeyError):
        return [Finding("data", MISSING, f"{MANIFEST} is broken", f"git checkout {MANIFEST}")]
    return [_data_set(name, about["files"], thorough) for name, about in sorted(known.items())]


def _data_set(name: str, files: dict, thorough: bool) -> Finding:
    row, mend = f"data/{name}", f".venv/bin/python -m tasks.ingest {name}"
    for file, about in files.items():
        path = Path("data", name, file)
        if not path.is_file():
            return Finding(row, MISSING, f"{path} is missing", mend)
        if path.stat().st_size != about["bytes"] or (thorough and _sha256(path) != about["sha256"]):
            return Finding(row, MISSING, f"{path} is not what {MANIFEST} says", f"rm -r data/{name} && {mend}")
    size = sum(about["bytes"] for about in files.values()) / 1e6
    return Finding(
        row, OK, f"{len(files)} files, {size:.1f} MB, as in {MANIFEST} ({'sha256' if thorough else 'sizes'})"
    )


def port(name: str, number: int, option: str, health: str) -> Finding:
    """A port that a server of ours wants: free, or who listens there."""
    row = f"port {number}"
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", number))
            return Finding(row, OK, f"free for {name}")
        except OSError:
            pass
    if _is_held(Path(".locks") / f"port-{number}.lock"):
        return Finding(row, OK, f"{name}, started from this folder")
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{number}{health}", timeout=2) as answer:
            who = f"a {name} that was not started from this folder" if answer.status == 200 else "another program"
    except (OSError, ValueError):
        who = "another program"
    mend = f"for commands.ui another port: python -m commands.ui {option} {number + 1}"
    return Finding(row, OPTIONAL, f"taken by {who}", mend)


def disk() -> Finding:
    needed = 1 if PYTHON.exists() else 4
    free = shutil.disk_usage(".").free / GIGABYTE
    if free < needed:
        return Finding("disk", MISSING, f"{free:.1f} GB free, {needed} are needed", "python -m commands.prune")
    return Finding("disk", OK, f"{free:.1f} GB free")


def memory() -> Finding:
    """The machine's memory, or the part of it that this container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        if Path(limit).is_file() and Path(limit).read_text().strip().isdigit():
            total = min(total, int(Path(limit).read_text()))
    said = f"{total / GIBIBYTE:.1f} GiB"
    if total < 3.5 * GIBIBYTE:
        return Finding("memory", OPTIONAL, f"{said}, two runs at a time want 4", "REREAD_WORKERS=1 make run")
    return Finding("memory", OK, said)


def cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = Path("/sys/fs/cgroup/cpu.max")
    if quota.is_file():
        allowed, period = quota.read_text().split()
        if allowed != "max":
            count = min(count, max(int(allowed) // int(period), 1))
    if count < 2:
        return Finding("cores", OPTIONAL, "1, two runs at a time want 2", "REREAD_WORKERS=1 make run")
    return Finding("cores", OK, str(count))


def output(*command: str) -> str:
    """What a command prints, stripped; empty where it is missing or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _is_held(lock: Path) -> bool:
    # As storage.files.file_lock, which an old Python cannot read.
    if not lock.is_file():
        return False
    with open(lock) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _plain(name: str) -> str:
    """A package's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()
