"""The project for Hugging Face's kernel-builder: configuration, sources, and the package, loaded as ``kernels`` does.

Nothing is compiled. What the builder adds to the package is written here, with an empty module for the library.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cuda_ext import build, hub
from cuda_ext.errors import KernelError

# https://github.com/huggingface/kernels/blob/main/docs/source/builder/writing-kernels.md, and the keys that its parser
# (kernels-data/src/config/v5.rs) requires: it refuses any other.
KEYS = {
    "general": {"name", "version", "edition", "license", "backends", "cuda"},
    "torch": {"src", "stable-abi"},
    "kernel": {"reread_kernels"},
}
OF_A_KERNEL = {"backend", "depends", "src", "cuda-capabilities", "cuda-flags"}
# kernel-builder/src/pyproject/templates/torch/_ops.py.in
OPS = """
import torch
from . import @OPS_NAME@
ops = torch.ops.@OPS_NAME@

def add_op_namespace_prefix(op_name: str):
    return f"@OPS_NAME@::{op_name}"
"""
METADATA = {"name": "reread-kernels", "version": 0, "backend": {"type": "cuda"}}
# Two builds in one process, each in a folder of its own, imported under its id as kernels/src/kernels/importer.py does.
PROGRAM = """
import doctest, importlib.util, pathlib, sys, warnings
import torch
warnings.simplefilter("ignore")
builds = []
for folder in map(pathlib.Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location(folder.name, folder / "__init__.py")
    module = sys.modules[folder.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    builds.append(module)
    names = [*module.__all__[1:], "gru.module"]
    tried = {name: doctest.testmod(sys.modules[f"{folder.name}.{name}"]) for name in names}
    assert not any(kernel.failed for kernel in tried.values()), tried
    assert [name for name, kernel in tried.items() if not kernel.attempted] == ["library"], tried
    assert module.library.kernels(torch.device("cpu")).startswith("reference (the tensors are on the cpu")
    assert module.library.build.built()["file"] == str(folder / f"{folder.name}.abi3.so")
    assert {f"checked_{name}" for name in module.__all__[1:-1]} < set(dir(getattr(torch.ops, folder.name)))

first, second = builds
x = torch.randn(4, 3, 5, requires_grad=True)
for call in (
    lambda build: build.vector_add.vector_add(x, x),
    lambda build: build.swish.swish(x, torch.tensor(1.5)),
    lambda build: torch.compile(build.swish.swish, backend="aot_eager", fullgraph=True)(x),
):
    assert torch.equal(call(first), call(second))
    assert torch.equal(*(torch.autograd.grad(call(build).sum(), x)[0] for build in builds))
assert first.swish.swish is not second.swish.swish
assert not {"cuda_ext", "reread_kernels"} & set(sys.modules)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "project"
    hub.write(folder)
    return folder


@pytest.fixture(scope="module")
def configuration(project):
    return tomllib.loads((project / "build.toml").read_text(encoding="utf-8"))


def test_the_configuration_has_the_documented_keys(project, configuration):
    assert {section: set(keys) for section, keys in configuration.items()} == KEYS
    (kernel,) = configuration["kernel"].values()
    general = configuration["general"]
    assert set(kernel) == OF_A_KERNEL and kernel["backend"] == "cuda" and kernel["depends"] == ["torch"]
    assert general["edition"] == 5 and general["backends"] == ["cuda"]
    assert re.fullmatch(r"[a-z][-a-z0-9]*[a-z0-9]", general["name"])
    assert configuration["torch"]["stable-abi"] == {"cuda": build.TORCH_TARGET}
    assert kernel["cuda-capabilities"] == ["8.0", "9.0a", "10.0+PTX", "12.0"]
    assert (project / "torch-ext" / general["name"].replace("-", "_") / "__init__.py").is_file()
    assert (project / "flake.nix").is_file() and (project / "LICENSE").is_file()
    assert all((project / name).is_file() for name in configuration["torch"]["src"])


def test_every_source_is_listed_and_there_as_it_is(project, configuration):
    """The builder sees no other file. Tests alone call what common/ compiles."""
    listed = configuration["kernel"]["reread_kernels"]["src"]
    expected = {path for path in build.SOURCES.rglob("*.cu*") if path.suffix == ".cuh" or path.parent.name != "common"}
    root = build.SOURCES.parent
    assert len(listed) == len(set(listed)) and {root / name for name in listed} == expected
    for name in listed:
        text = (project / name).read_text(encoding="utf-8")
        assert text == (root / name).read_text(encoding="utf-8")
        included = {((project / name).parent / include).resolve() for include in re.findall(r'#include "(.*)"', text)}
        assert included <= {(project / other).resolve() for other in listed}, name


def test_the_flag_renames_every_namespace_of_the_sources(project, configuration):
    kernel = configuration["kernel"]["reread_kernels"]
    (flag,) = kernel["cuda-flags"]
    name, namespace = flag.removeprefix("-D").split("=")
    texts = {source: (project / source).read_text(encoding="utf-8") for source in kernel["src"]}
    registered = [word for text in texts.values() for word in re.findall(r"STABLE_TORCH_LIBRARY\w*\((\w+)", text)]
    assert registered and set(registered) == {name}
    assert f"REGISTER_EXTENSION({namespace})" in (project / "torch-ext/torch_binding.cpp").read_text(encoding="utf-8")


def test_modules_import_relatively_and_name_no_namespace(project):
    for path in (project / "torch-ext").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        # What torch 2.11 runs on.
        for node in ast.walk(ast.parse(text, feature_version=(3, 10))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert {name.split(".")[0] for name in names} <= {"torch", *sys.stdlib_module_names}, path
        assert not re.search(r"torch\.ops\.(?!aten|load_library)|[\"']reread_kernels(_compiled)?(::|[\"'])", text), path


def test_two_builds_run_their_examples_in_one_process(project, tmp_path):
    folders = [tmp_path / name / f"_reread_kernels_cuda_{name}" for name in ("abc1234", "def5678")]
    for folder in folders:
        shutil.copytree(project / "torch-ext/reread_kernels", folder)
        (folder / f"{folder.name}.py").touch()
        (folder / "_ops.py").write_text(OPS.replace("@OPS_NAME@", folder.name), encoding="utf-8")
        metadata = METADATA | {"id": folder.name, "backend": {"type": "cuda", "archs": ["10.0+PTX", "8.0"]}}
        (folder / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM, *folders], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_what_the_builder_wrote_is_read_like_a_library_s_own_record(tmp_path):
    # Sorted as text, as the builder has it.
    metadata = METADATA | {"id": "_a_cuda_b", "backend": {"type": "cuda", "archs": ["10.0+PTX", "12.0", "8.0", "9.0a"]}}
    (tmp_path / "metadata.json").write_text(json.dumps(metadata), encoding="utf-8")
    library = build.built_for_the_hub(tmp_path)
    assert library["architectures"] == build.capabilities() and tuple(library["ptx"]) == build.PTX
    assert library["file"] == str(tmp_path / "_a_cuda_b.abi3.so")


@pytest.mark.parametrize("name", ["file", "file/folder"])
def test_a_file_in_place_of_the_folder_is_named(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(KernelError, match=f"^{re.escape(str(tmp_path / name))} is no folder .*: name another one$"):
        hub.write(tmp_path / name)


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "old.cu").touch()
    with pytest.raises(KernelError, match=re.escape(str(tmp_path))):
        hub.write(tmp_path)
