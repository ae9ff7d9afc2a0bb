"""Check the installation; print the fix of each problem.

reread doctor                 in a folder without an environment: make doctor
reread doctor --thorough      read all of data/ and compare its sha256
reread doctor --json

Exit code 0 where all that is required is there, 1 where something is missing. Nothing is changed or installed.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Annotated

import psutil
import typer
from rich.console import Console
from rich.text import Text

from reread.commands.options import AsJson, print_json
from reread.commands.servers import is_free, port_lock
from reread.planning.experiment import PARAMETERS_FILE, read_parameters
from reread.planning.manifest import read_manifest
from reread.preprocessing.manifest import DATA_DIRECTORY, MANIFEST_PATH, DataSetEntry, unlisted
from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.ledger import LEDGER, read_ledger
from reread.storage.locks import is_held
from reread.storage.source import ROOT
from tasks.dvc_cache import remotes

OK, MISSING, OPTIONAL = "ok", "missing", "optional"
COLOURS = {OK: "green", MISSING: "bold red", OPTIONAL: "yellow"}
LOCK_FILE = Path("requirements.lock")
GIGABYTE, GIBIBYTE = 10**9, 2**30


@dataclass(frozen=True)
class Check:
    """The result of one check: its state (optional: something is left out without it), the finding, and the fix."""

    name: str
    state: str
    detail: str
    fix: str = ""


def command(
    thorough: Annotated[bool, typer.Option("--thorough", help="Read all of data/.")] = False, as_json: AsJson = False
) -> int:
    checks = list(examine(thorough))
    missing = sum(check.state == MISSING for check in checks)
    if as_json:
        print_json([asdict(check) for check in checks])
        return 1 if missing else 0
    console, width = Console(highlight=False, soft_wrap=True), max(len(check.name) for check in checks)
    for check in checks:
        console.print(Text(f"{check.state:<8}", COLOURS[check.state]), Text(f" {check.name:<{width}}  {check.detail}"))
        if check.fix:
            console.print(f"{'':<10}{'':<{width}}  -> {check.fix}", markup=False)
    console.print("\nall that is required is there" if not missing else f"\n{missing} missing: run the commands above")
    return 1 if missing else 0


def examine(thorough: bool = False) -> Iterator[Check]:
    """Make every check; ``thorough`` reads the bytes of data/."""
    yield Check("Python", OK, f"{sys.version.split()[0]} in {sys.prefix}")
    yield source()
    yield packages()
    yield from accelerator()
    for name in ("git", "make"):
        path = shutil.which(name)
        yield Check(name, OK if path else MISSING, path or "not found", "" if path else f"apt-get install {name}")
    yield browser()
    yield dvc_remote()
    yield parameters()
    yield from data(thorough)
    yield ledger()
    yield port("Prefect", 4200, "--prefect-port")
    yield port("MLflow", 5000, "--mlflow-port")
    yield from machine()


def source() -> Check:
    """The code of this command: in a copied project it may be that of the original."""
    if Path("reread/commands").is_dir() and Path.cwd() != ROOT:
        return Check("source", MISSING, f"{ROOT}, not of this folder", "rm -rf .venv && make install")
    return Check("source", OK, str(ROOT))


def packages(site: list[str] | None = None) -> Check:
    """The installed packages against the lock file."""
    if not LOCK_FILE.is_file():
        return Check("packages", MISSING, f"{LOCK_FILE} is missing", f"git checkout {LOCK_FILE}")
    wanted = dict(re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", LOCK_FILE.read_text(encoding="utf-8"), re.MULTILINE))
    installed = {
        _plain(distribution.metadata["Name"]): distribution.version
        for distribution in distributions(path=site or sys.path)
    }
    wrong = [
        f"{name} {installed.get(_plain(name), 'missing')}"
        for name in wanted
        if installed.get(_plain(name)) != wanted[name]
    ]
    if wrong:
        named = f"{', '.join(wrong[:3])}{f' and {len(wrong) - 3} more' if len(wrong) > 3 else ''}"
        return Check("packages", MISSING, f"not as in {LOCK_FILE}: {named}", "rm -f .venv/installed && make install")
    return Check("packages", OK, f"{len(wanted)} as in {LOCK_FILE}")


def accelerator() -> Iterator[Check]:
    """torch, the GPUs, the CUDA compiler and the library of kernels, by torch's own report of its environment."""
    import torch
    from torch.utils import collect_env

    from cuda_ext import library

    cuda = torch.version.cuda
    cpu = torch.backends.cpu.get_cpu_capability()
    yield Check("torch", OK, f"{torch.__version__}, {f'CUDA {cuda}' if cuda else 'no CUDA'}, CPU {cpu}")
    driver = collect_env.get_nvidia_driver_version(collect_env.run)
    if not driver:
        yield Check("GPU", OPTIONAL, "none: training runs on the CPU")
    elif not torch.cuda.is_available():
        build = ".venv/bin/pip install --force-reinstall --require-hashes --no-deps -r requirements-cuda.lock"
        fix = f"a driver for CUDA {cuda}" if cuda else build
        yield Check("GPU", OPTIONAL, f"driver {driver}; torch {'does not reach it' if cuda else 'has no CUDA'}", fix)
    else:
        names = ", ".join(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
        yield Check("GPU", OK, f"{names}, driver {driver}")
    nvcc = _version("nvcc")
    fits = nvcc and cuda and nvcc.split(".")[0] == cuda.split(".")[0]
    if nvcc and (fits or not cuda):
        yield Check("nvcc", OK, nvcc)
    else:
        fix = f"install the CUDA toolkit {cuda}" if cuda else "apt-get install nvidia-cuda-toolkit"
        yield Check("nvcc", OPTIONAL, f"{nvcc} does not fit CUDA {cuda}" if nvcc else "none: no kernel is built", fix)
    if torch.cuda.is_available():
        kernels = library.kernels(torch.device("cuda", 0))
        built = kernels.startswith("extension")
        yield Check("kernels", OK if built else OPTIONAL, kernels, "" if built else "make ext")


def browser() -> Check:
    """Chromium and its driver, of one version: tests drive MLflow's pages with them."""
    versions = {name: _version(name) for name in ("chromium", "chromedriver")}
    if all(versions.values()) and len({version.split(".")[0] for version in versions.values()}) == 1:
        return Check("Chromium", OK, versions["chromium"])
    names = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    fix = "apt-get install chromium chromium-driver"
    return Check("Chromium", OPTIONAL, f"{names}: tests of pages are skipped", fix)


def dvc_remote() -> Check:
    """Check whether DVC has a remote for data/, and whether it verifies fetched files."""
    known = remotes()
    unsafe = [name for name, verified in known.items() if not verified]
    if not known:
        fix = ".venv/bin/dvc remote add --default storage URL && .venv/bin/dvc remote modify storage verify true"
        return Check("DVC remote", OPTIONAL, "none: data/ is built on each machine", fix)
    if unsafe:
        fix = f".venv/bin/dvc remote modify {unsafe[0]} verify true"
        return Check("DVC remote", OPTIONAL, f"{unsafe[0]}: what is fetched from it is not verified", fix)
    return Check("DVC remote", OK, ", ".join(known))


def parameters() -> Check:
    """The parameters of all experiments."""
    try:
        read_parameters()
    except InputError as error:
        return Check(str(PARAMETERS_FILE), MISSING, str(error), f"git checkout {PARAMETERS_FILE}")
    return Check(str(PARAMETERS_FILE), OK, "valid")


def ledger() -> Check:
    """The chain of the ledger of test reads."""
    try:
        return Check("test reads", OK, f"{len(read_ledger())} in {LEDGER}")
    except InputError as error:
        return Check("test reads", MISSING, str(error), f"git checkout {LEDGER}")


def data(thorough: bool) -> Iterator[Check]:
    """The files of each data set against the manifest, by size or by sha256."""
    try:
        datasets = read_manifest().datasets
    except InputError as error:
        datasets = {}
        yield Check("data", MISSING, str(error), f"git checkout {MANIFEST_PATH}")
    for folder in () if MANIFEST_PATH.exists() else sorted(DATA_DIRECTORY.glob("[!.]*/")):
        yield Check(str(folder), MISSING, unlisted(folder), f"git checkout {MANIFEST_PATH}")
    for name, entry in sorted(datasets.items()):
        wrong = next((file for file in entry.files if not _is_as_recorded(name, file, entry, thorough)), None)
        if wrong:
            fix = f"rm -rf data/{name} && reread data {name}"
            yield Check(f"data/{name}", MISSING, f"data/{name}/{wrong} is missing or not as in {MANIFEST_PATH}", fix)
        else:
            size = sum(file.bytes for file in entry.files.values()) / 1e6
            by = "sha256" if thorough else "sizes"
            yield Check(f"data/{name}", OK, f"{len(entry.files)} files, {size:.1f} MB, as in {MANIFEST_PATH} ({by})")


def _is_as_recorded(name: str, file: str, entry: DataSetEntry, thorough: bool) -> bool:
    path, recorded = Path("data", name, file), entry.files[file]
    if not path.is_file() or path.stat().st_size != recorded.bytes:
        return False
    return not thorough or sha256_file(path) == recorded.sha256


def port(name: str, number: int, option: str) -> Check:
    """A port that a server of ours needs."""
    if is_free(number):
        return Check(f"port {number}", OK, f"free for {name}")
    if is_held(port_lock(number)):
        return Check(f"port {number}", OK, f"{name}, started from this folder")
    return Check(f"port {number}", OPTIONAL, "taken by another program", f"reread ui {option} {number + 1}")


def machine() -> Iterator[Check]:
    """Disk, memory (or the part of it that this container may use) and cores."""
    free = psutil.disk_usage(".").free / GIGABYTE
    yield Check(
        "disk", *((OK, f"{free:.1f} GB free") if free > 1 else (MISSING, f"{free:.1f} GB free", "reread prune"))
    )
    total, limit = psutil.virtual_memory().total, Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and limit.read_text().strip().isdigit():
        total = min(total, int(limit.read_text()))
    cores = len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count() or 1
    for name, amount, few, wanted in (
        ("memory", f"{total / GIBIBYTE:.1f} GiB", total < 3.5 * GIBIBYTE, "4 GiB"),
        ("cores", str(cores), cores < 2, "2"),
    ):
        less = (OPTIONAL, f"{amount}, two runs at a time want {wanted}", "REREAD_WORKERS=1 reread run")
        yield Check(name, *(less if few else (OK, amount)))


def _version(program: str) -> str:
    """The version that a program prints; empty where it is missing or fails."""
    if not shutil.which(program):
        return ""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=60)
    match = re.search(r"(?:release )?(\d+(?:\.\d+)+)", done.stdout)
    return match.group(1) if done.returncode == 0 and match else ""


def _plain(name: str) -> str:
    """A package's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()
