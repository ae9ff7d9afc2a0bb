"""The house: imports run downward only, and each library has its floor."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Lowest first; packages of one floor do not know each other. cuda_ext is a wheel of its own and imports none.
FLOORS = [
    {"storage", "cuda_ext"},
    {"kinds", "runtime", "verdicts"},
    {"models", "importers"},
    {"batches"},
    {"preprocessing", "training", "evaluation"},
    {"planning"},
    {"tracking"},
    {"tasks", "benchmarks", "studies"},
    {"flows"},
    {"commands"},
    {"reread"},
]
LEVEL = {package: level for level, floor in enumerate(FLOORS) for package in floor}
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
        "reread/",
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
    "reread/storage/",
    "reread/kinds/",
    "cuda_ext/",
    "reread/runtime/",
    "models/",
    "reread/batches/",
    "reread/training/",
)
BARE_LIBRARIES = {"torch", "numpy", "safetensors"}
SOURCES = sorted(path for package in LEVEL for path in (ROOT / package).rglob("*.py"))


def imports(path: Path) -> set[str]:
    """The dotted names that a file imports, at its top or inside a function."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes(), str(path))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are written from the root"
            names.add(node.module)
    return names


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_run_downward_and_libraries_keep_to_their_floor(path):
    name = path.relative_to(ROOT).as_posix()
    package = name.split("/")[0]
    for imported in imports(path):
        top = imported.split(".")[0]
        if top in LEVEL:
            assert top == package or LEVEL[top] < LEVEL[package], f"{name} imports {imported}"
        if top in ONLY_IN:
            assert name.startswith(ONLY_IN[top] or "\0"), f"{name} imports {imported}"
        if name.startswith(BARE):
            allowed = BARE_LIBRARIES | set(LEVEL) | set(sys.stdlib_module_names)
            assert top in allowed, f"{name} imports {imported}, which a bare training machine does not have"


def test_each_package_is_installed():
    """The reread command does not see the checkout's folder, only what pyproject.toml installs."""
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"][
        "find"
    ]
    assert found["include"] == [f"{package}*" for package in sorted(LEVEL)]


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
