"""The house: imports run downward only, and each library has its floor."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path, PurePath

import pytest

from reread.storage.source import module_file

ROOT = Path(__file__).resolve().parent.parent
# Lowest first; rooms of one floor do not know each other. cuda_ext is a wheel of its own and imports none.
FLOORS = [
    {"reread/__init__.py"},
    {"reread/storage", "cuda_ext"},
    {"reread/goals", "reread/kinds", "reread/runtime", "reread/verdicts"},
    {"models", "reread/importers"},
    {"reread/batches"},
    {"reread/preprocessing", "reread/training", "reread/evaluation"},
    {"reread/planning"},
    {"reread/tracking", "reread/arms"},
    {"tasks", "benchmarks", "reread/studies"},
    {"flows"},
    {"reread/commands"},
    {"reread/interface.py", "reread/data.py", "reread/__main__.py"},
]
LEVEL = {room: level for level, floor in enumerate(FLOORS) for room in floor}
# What `pip install` puts beside other packages; benchmarks are of the checkout alone.
INSTALLED = ["cuda_ext", "flows", "models", "reread", "tasks"]
# Where a library may be imported: everything else goes through there.
ONLY_IN = {
    "prefect": ("flows/", "tasks/", "reread/commands/"),
    "mlflow": ("reread/tracking/",),  # reread/importers/mlflow.py imports it by name, where it is installed
    "dvc": ("tasks/dvc_cache.py",),
    "pandas": (
        "reread/preprocessing/",
        "reread/evaluation/",
        "reread/tracking/",
        "tasks/",
        "flows/",
        "reread/commands/",
        "benchmarks/",
        "reread/studies/",
        "reread/interface.py",
    ),
    "sklearn": ("reread/preprocessing/", "reread/evaluation/", "benchmarks/"),
    "pickle": (),
    "joblib": (),
    "dask": ("reread/preprocessing/workers.py",),
    "distributed": ("reread/preprocessing/workers.py",),
    "cloudpickle": (),
}
# A machine that trains has torch, numpy and safetensors, and nothing else of ours.
BARE = (
    "reread/__init__.py",
    "reread/storage/",
    "reread/goals/",
    "reread/kinds/",
    "cuda_ext/",
    "reread/runtime/",
    "models/",
    "reread/batches/",
    "reread/training/",
)
BARE_LIBRARIES = {"torch", "numpy", "safetensors"}
SOURCES = sorted(path for package in {*INSTALLED, "benchmarks"} for path in (ROOT / package).rglob("*.py"))


def room(path: str) -> str:
    """The room of a file, by its path from the root."""
    return next(place for place in (path, *map(str, PurePath(path).parents)) if place in LEVEL)


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written from the root"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def project_file(name: str) -> str | None:
    """The file of the longest beginning of a dotted name that is a module of the project, by its path from the root."""
    parts = name.split(".")
    files = (module_file(".".join(parts[:end])) for end in range(len(parts), 0, -1))
    return next((file.relative_to(ROOT).as_posix() for file in files if file), None)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_downward_and_libraries_keep_to_their_floor(path):
    name = path.relative_to(ROOT).as_posix()
    own = room(name)
    for imported in imports(path):
        top = imported.split(".")[0]
        if file := project_file(imported):
            other = room(file)
            assert other == own or LEVEL[other] < LEVEL[own], f"{name} imports {imported}"
        if top in ONLY_IN:
            assert name.startswith(ONLY_IN[top] or "\0"), f"{name} imports {imported}"
        if name.startswith(BARE):
            allowed = BARE_LIBRARIES | set(INSTALLED) | set(sys.stdlib_module_names)
            assert top in allowed, f"{name} imports {imported}, which a bare training machine does not have"


def test_each_package_is_installed():
    """The reread command does not see the checkout's folder, only what pyproject.toml installs."""
    section = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"][
        "find"
    ]
    assert section["include"] == [f"{package}*" for package in INSTALLED]


def test_no_source_starts_dvc():
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.List | ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                assert node.elts[0].value != "dvc", f"{path}:{node.lineno} starts dvc"


def test_importing_the_training_floor_brings_neither_prefect_nor_mlflow_and_stages_of_dvc_bring_no_prefect():
    code = """
import sys, reread.training.run
print([name for name in ("prefect", "mlflow", "pandas", "sklearn") if name in sys.modules])
import tasks.evaluate, tasks.ingest, tasks.preprocess, tasks.train
print("prefect" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]", "False"]
