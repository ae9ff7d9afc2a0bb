"""The parts that tests share: a copy of the project to run, edit and break, and the means to run a command in it."""

import compileall
import contextlib
import gc
import importlib.metadata
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from reread.evaluation import vega
from reread.runtime.garbage import collect_less
from reread.storage.files import content_key, published_directory, sha256_file
from reread.storage.locks import file_lock
from tests import forks

# Before torch is imported: its threads wait actively, so that on shared cores two take four times the CPU time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

ROOT = Path(__file__).resolve().parent.parent
# Files of tests are in memory where there is room for them: on a disk each flush waits for it, thousands of times.
MEMORY, ROOM = Path("/dev/shm"), 8 << 30
# What a user may have set, and what must not reach a copy of the project.
NOT_INHERITED = ("REREAD_", "PREFECT_", "MLFLOW_", "DVC_", "GIT_")


def fits_in_memory() -> bool:
    """Return whether the files of tests fit in memory, and programs may be run from there."""
    try:
        free, flags = shutil.disk_usage(MEMORY).free, os.statvfs(MEMORY).f_flag
    except OSError:
        return False
    return min(free, psutil.virtual_memory().available) > ROOM and not flags & os.ST_NOEXEC


if fits_in_memory():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item):
    """Where everything is installed nothing may be skipped in silence: in CI a skip is a failure.

    Excepted are a GPU, the programs of Debian that CI may lack, and packages that the lock files leave out.
    """
    report = yield
    if (
        report.skipped
        and os.environ.get("CI")
        and not {"gpu", "debian", "unlocked"} & set(item.keywords)
        and not hasattr(report, "wasxfail")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where it may not be: {report.longrepr[2]}"
    return report


# Make the databases of MLflow and of Prefect.
MIGRATE = """
import asyncio
from prefect.server.database import provide_database_interface
from reread.tracking.runs import open_tracking
open_tracking()
asyncio.run(provide_database_interface().create_db())
"""
# `reread run --experiment tiny`, whose files change as soon as a run is trained.
RUN_AND_EDIT = """
from pathlib import Path
from reread.commands.app import main
from tasks.train import train

before = train.fn

def edit(job, fresh, wait):
    Path("params.yaml").write_text("training: {learning_rate: 7}")
    Path("experiments/tiny.yaml").unlink(missing_ok=True)
    return before(job, fresh, wait)

train.fn = edit
main(["run", "--experiment", "tiny"])
"""
# The files that take longest, by `pytest -n 0 --durations=0`. The first makes ``finished``; those after it need neither
# that nor ``template``, and the last ones share what the first has made.
LONGEST = (
    "test_both_doors.py",
    "reread/commands/test_service.py",
    "reread/commands/test_try.py",
    "reread/tracking/test_recording.py",
    "reread/training/test_launcher.py",
    "reread/training/test_processes.py",
    "reread/training/test_kills.py",
    "reread/training/test_runs.py",
    "reread/storage/test_mutations.py",
    "tasks/test_slurm.py",
    "reread/tracking/test_mlflow_ui.py",
    "reread/tracking/test_tracking.py",
    "flows/test_survival.py",
    "flows/test_deployed.py",
    "test_dvc.py",
    "reread/planning/test_published_runs.py",
    "reread/commands/test_hints.py",
    "reread/commands/test_prune.py",
    "reread/commands/test_regression.py",
    "examples/test_spoken_digits.py",
    "reread/goals/test_symbols.py",
    "reread/goals/test_new_goal.py",
    "reread/commands/test_outside_network.py",
    "test_docs.py",
    "tasks/test_folds.py",
    "reread/commands/test_verify.py",
    "reread/arms/test_claim.py",
    "tasks/test_multi_label.py",
    "reread/planning/test_remote_runs.py",
    "reread/commands/test_reproduce.py",
    "reread/commands/test_predict.py",
    "reread/training/test_places.py",
    "tasks/test_full_disk.py",
    "reread/preprocessing/test_docstrings.py",
    "reread/preprocessing/test_blocks.py",
    "models/test_registry.py",
    "reread/tracking/test_served_model.py",
    "reread/tracking/test_served_baseline.py",
)


collect_less()


def pytest_configure(config: pytest.Config) -> None:
    """Compile the project: commands of tests write no bytecode, and each would compile what pytest does not import."""
    if not hasattr(config, "workerinput"):
        for room in ("benchmarks", "cuda_ext", "flows", "models", "reread", "tasks"):
            compileall.compile_dir(ROOT / room, quiet=1)


def pytest_collection_finish() -> None:
    """Exempt what the test files have imported from garbage collection."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first: a worker that begins one at the end works alone for minutes."""
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))


@dataclass(frozen=True)
class Project:
    """A copy of the project in a folder of its own, as a clone with data/ in it."""

    directory: Path
    environment: dict[str, str] = field(repr=False)

    def run(self, *command: str, code: int | None = 0, timeout: float = 600, **environment: str):
        """Run a command in the copy (``python`` is this Python) and return it with its output; check its exit code."""
        variables, usual = {**self.environment, **environment}, clean_environment()
        if command[0] == "python" and command[1] in ("-c", "-m") and forks.fits(variables, usual):
            done = forks.run(command[1:], self.directory, variables, usual, timeout)
        else:
            done = subprocess.run(
                [sys.executable if word == "python" else word for word in command],
                cwd=self.directory,
                env=variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        assert code is None or done.returncode == code, (
            f"{command} gave {done.returncode}:\n{done.stdout}\n{done.stderr}"
        )
        return done

    def using(self, variables: Mapping[str, str]) -> "Project":
        """The same copy, whose commands get ``variables`` too."""
        return replace(self, environment={**self.environment, **variables})

    def processes(self) -> dict[int, list[str]]:
        """The command lines of the processes whose current folder is this copy, by process id (Linux)."""
        commands = {}
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "cwd") == str(self.directory):
                    commands[int(entry.name)] = (entry / "cmdline").read_bytes().decode().rstrip("\0").split("\0")
            except OSError:
                continue
        return commands

    def git(self, *arguments: str) -> str:
        return self.run("git", *arguments).stdout

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace ``old``, which must stand there once, by ``new`` in a file."""
        path = self.directory / name
        text = path.read_text(encoding="utf-8")
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {name}"
        path.write_text(text.replace(old, new), encoding="utf-8")


def project_files() -> list[str]:
    """The project's files, committed or about to be."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def clean_environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    # DVC starts `python` by name: it must be this one.
    kept["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    # Copies have the template's bytecode. That of an edited file would be taken for the next edit's in the same second.
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    # Workers of pytest-xdist use the cores, and each process that trains imports torch.
    kept["REREAD_WORKERS"] = "1"
    return kept


def run_python(
    *words: Path | str, folder: Path = ROOT, given: bytes = b"", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS`, of -m or -c, in a folder with this checkout's source; return it with its output.

    given: its input.
    """
    usual = clean_environment()
    variables = {**usual, "PYTHONPATH": str(ROOT), **environment}
    return forks.run(list(map(str, words)), folder, variables, usual, given=given)


def run_reread(*words: Path | str, **about: Any) -> subprocess.CompletedProcess[str]:
    """Run `reread WORDS` as ``run_python`` does."""
    return run_python("-m", "reread", *words, **about)


def make_once(folder: pytest.TempPathFactory, name: str, build: Callable[[Path], None]) -> Path:
    """Return a folder of this test session that ``build`` fills; several workers of pytest-xdist share it."""
    base = folder.getbasetemp()
    made = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    done = made.with_name(f"{name}.done")
    with file_lock(made.with_name(f"{name}.lock")):
        if not done.exists():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            build(made)
            done.touch()
    return made


@pytest.fixture(scope="session")
def empty_databases() -> Path:
    """A folder with mlflow.db and .prefect/prefect.db that have no runs. Tests copy it.

    Ten seconds of migrations make it, once for each version of what makes it.
    """
    made_by = {name: importlib.metadata.version(name) for name in ("mlflow", "prefect", "alembic", "sqlalchemy")}
    made_by |= {"script": MIGRATE, "tracking": sha256_file(ROOT / "reread/tracking/connection.py")}
    made = ROOT / ".cache/databases" / content_key(made_by)
    with file_lock(made.with_suffix(".lock")):
        if not made.exists():
            with published_directory(made) as folder:
                environment = {**clean_environment(), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
                environment |= {"PREFECT_HOME": str(folder / ".prefect"), "PREFECT_LOGGING_LEVEL": "ERROR"}
                migrate = [sys.executable, "-c", MIGRATE]
                subprocess.run(migrate, cwd=folder, env=environment, check=True, capture_output=True)
                for left in ("mlartifacts", ".locks"):
                    shutil.rmtree(folder / left, ignore_errors=True)
    return made


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory, empty_databases: Path) -> Path:
    """The folder of one copy of the project, committed, that is copied for each test."""
    if not (ROOT / "data").is_dir():
        pytest.fail("data/ is missing: run `make data` first")

    def build(directory: Path) -> None:
        for file in project_files():
            destination = directory / file
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, destination)
        compileall.compile_dir(directory, quiet=1)
        shutil.copytree(ROOT / "data", directory / "data")
        # A network that passed its checks here is not checked again, source is parsed once, and Vega is bundled once.
        (directory / ".cache").mkdir()
        for kept in ("checked-networks", "normalised"):
            (ROOT / ".cache" / kept).mkdir(parents=True, exist_ok=True)
            (directory / ".cache" / kept).symlink_to(ROOT / ".cache" / kept)
        vega.script()
        (directory / ".cache" / vega.BUNDLE.name).symlink_to(vega.BUNDLE)
        project = Project(directory, clean_environment())
        project.git("init", "--quiet", "--initial-branch=main")
        project.git("add", ".")
        project.git("-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "-m", "copy")
        shutil.copytree(empty_databases, directory, dirs_exist_ok=True)

    return make_once(tmp_path_factory, "template", build)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory, template: Path) -> Project:
    """A copy of the project that has run the tiny experiment on seed 0. Tests read it; one that writes copies it.

    params.yaml and the experiment were changed while it ran, and restored afterwards:
    tests/reread/planning/test_plan.py.
    """

    def build(directory: Path) -> None:
        shutil.copytree(template, directory, symlinks=True, dirs_exist_ok=True)
        project = Project(directory, clean_environment())
        project.edit("experiments/tiny.yaml", "seeds: [0, 1]", "seeds: [0]")
        edited = [directory / "params.yaml", directory / "experiments/tiny.yaml"]
        texts = [path.read_text(encoding="utf-8") for path in edited]
        project.run("python", "-c", RUN_AND_EDIT, REREAD_WORKERS="2")
        assert "learning_rate: 7" in edited[0].read_text(encoding="utf-8") and not edited[1].exists()
        for path, text in zip(edited, texts, strict=True):
            path.write_text(text, encoding="utf-8")

    # Paths in MLflow's database are absolute: it stays where it was made.
    return Project(make_once(tmp_path_factory, "finished", build), clean_environment())


@pytest.fixture
def copy_of_finished(finished: Project, empty_databases: Path, tmp_path: Path) -> Project:
    """A copy of ``finished`` whose MLflow and Prefect have no runs."""
    directory = tmp_path / "project"
    # Another test may be reading what is left out.
    left_out = shutil.ignore_patterns("mlflow.db*", "mlartifacts", ".prefect", ".locks")
    shutil.copytree(finished.directory, directory, symlinks=True, ignore=left_out)
    shutil.copytree(empty_databases, directory, dirs_exist_ok=True)
    for origin in directory.glob("runs/*/origin.json"):
        origin.unlink()
    return replace(finished, directory=directory)


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory, empty_databases: Path) -> Iterator[dict[str, str]]:
    """The variables of a client of a Prefect server that runs to the end of the session.

    A command that starts a server of its own spends six seconds of the CPU on it: a test of many commands, and not of
    servers, names this one to them.
    """
    from reread.commands.servers import api_url, module_command, prefect_environment
    from tests.servers import call, free_port

    home = tmp_path_factory.mktemp("prefect")
    shutil.copytree(empty_databases, home, dirs_exist_ok=True)
    port, auth = free_port(), "tests:password"
    environment = {**clean_environment(), **prefect_environment(api_url(port), auth)}
    environment |= {"PREFECT_HOME": str(home / ".prefect"), "PYTHONPATH": str(ROOT)}
    with open(home / "log", "w") as log:
        server = subprocess.Popen(
            module_command("reread.commands.prefect_server", "--port", str(port)),
            cwd=home, env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        while True:
            with contextlib.suppress(OSError):
                call(f"{api_url(port)}/health")
                break
            assert server.poll() is None, (home / "log").read_text()
            time.sleep(0.1)
        yield {"PREFECT_API_URL": api_url(port), "PREFECT_API_AUTH_STRING": auth}
    finally:
        server.terminate()
        server.wait(60)


@pytest.fixture
def make_project(tmp_path: Path, template: Path) -> Callable[[str], Project]:
    """A function that makes a fresh copy of the project under a name."""

    def make(name: str = "project") -> Project:
        shutil.copytree(template, tmp_path / name, symlinks=True)
        return Project(tmp_path / name, clean_environment())

    return make


@pytest.fixture
def project(make_project: Callable[[str], Project]) -> Project:
    """One fresh copy of the project."""
    return make_project("project")
