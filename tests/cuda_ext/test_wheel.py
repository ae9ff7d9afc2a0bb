"""The wheel, installed where there is torch and nothing else: each operation's example and reference run there."""

import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from cuda_ext import build, wheel
from cuda_ext.errors import KernelError

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no NVIDIA GPU")]
# Run in the other environment, on the device that is its argument. On a CPU an operation is its reference.
PROGRAM = """
import doctest, importlib, importlib.metadata, importlib.util, pathlib, re, sys, warnings
warnings.simplefilter("ignore")
import reread_kernels, torch
assert importlib.util.find_spec("cuda_ext") is None, "the environment has the project's own packages"
torch.set_default_device(sys.argv[1])

class OnAnyDevice(doctest.OutputChecker):
    def check_output(self, want, got, optionflags):
        return super().check_output(want, re.sub(r",\\s+device='cuda:0'", "", got), optionflags)

folder = pathlib.Path(reread_kernels.__file__).parent
paths = [path.relative_to(folder.parent).with_suffix("") for path in folder.rglob("*.py")]
names = sorted(".".join(path.parts) for path in paths)
tried = {}
for name in names:
    module = importlib.import_module(name.removesuffix(".__init__"))
    runner = doctest.DocTestRunner(OnAnyDevice())
    for example in doctest.DocTestFinder().find(module):
        runner.run(example)
    assert not runner.failures, name
    tried[name.removesuffix(".__init__")] = runner.tries
assert reread_kernels.__version__ == importlib.metadata.version("reread-kernels")
assert torch.equal(torch.ops.reread_kernels.transpose(torch.eye(2, 3), "tiled"), torch.eye(3, 2))
print(tried)
print(reread_kernels.library.kernels(torch.device(sys.argv[1])))
"""
EXAMPLES = (
    "vector_add",
    "transpose",
    "finite_differences",
    "swish",
    "conv2d",
    "attention_pooling",
    "batch_norm_activation",
    "dense_block",
    "embedding",
    "cross_entropy",
    "gradient_norm",
    "adamw",
    "foreach_copy",
    "max_pool2d",
    "patch_convolution",
    "gru",
    "gru.module",
)


def requirements(name: str) -> set[str]:
    """A distribution and all that it needs here."""
    needed, waiting = set(), [name]
    while waiting:
        distribution = waiting.pop()
        if distribution in needed:
            continue
        needed.add(distribution)
        for line in importlib.metadata.requires(distribution) or []:
            wanted = re.match(r"[\w.-]+", line)[0]
            if "extra ==" not in line and _is_installed(wanted):
                waiting.append(wanted)
    return needed


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    return wheel.wheel(tmp_path_factory.mktemp("dist"), None)


def test_the_wheel_has_the_operations_and_nothing_of_the_checkout_alone(built):
    assert built.name == f"reread_kernels-{wheel.VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(built) as archive:
        names = set(archive.namelist())
        texts = [archive.read(name).decode() for name in names if name.endswith((".py", "/METADATA"))]
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    operations = {path.parent.name for path in build.SOURCES.glob("*/*.cu")} - {"common"}
    assert {f"reread_kernels/{name}/__init__.py" for name in operations} <= names
    assert any(name.endswith("/LICENSE") for name in names)
    assert not [name for name in names if name.endswith((".cu", ".cuh", "cases.py", "bench.py", "pyproject.toml"))]
    assert "Requires-Dist: torch<2.14,>=2.11" in metadata
    # A command is a checkout's: none is advertised that the wheel's modules answer.
    assert not [text for text in texts if re.search("(?<!python -m )cuda_ext(?!/)|python -m reread_kernels", text)]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_built_library_is_in_the_wheel(tmp_path, monkeypatch, machine):
    monkeypatch.setattr(wheel.platform, "machine", lambda: machine)
    folder = tmp_path / "library"
    folder.mkdir()
    machine_code = b"memcpy GLIBC_2.14 pthread_create GLIBC_2.34 qsort GLIBC_2.2.5"
    (folder / "kernels.so").write_bytes(machine_code)
    (folder / "library.json").write_text('{"file": "kernels.so", "nvcc": "13.0"}', encoding="utf-8")
    file = wheel.wheel(tmp_path, folder)
    assert file.name == f"reread_kernels-{wheel.VERSION}+cu130-py3-none-manylinux_2_34_{machine}.whl"
    with zipfile.ZipFile(file) as archive:
        assert archive.read("reread_kernels/_build/kernels.so") == machine_code
        assert "reread_kernels/_build/library.json" in archive.namelist()


def test_a_wheel_s_library_is_not_replaced_by_one_of_no_sources(built, tmp_path):
    with zipfile.ZipFile(built) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "reread_kernels/_build"
    folder.mkdir()
    (folder / "cuda_ext-0.so").write_bytes(b"the library")
    (folder / "library.json").write_text('{"file": "cuda_ext-0.so"}', encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "reread_kernels.build"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2 and re.fullmatch(
        f"error: {folder.parent} has no CUDA sources to compile .*: install a wheel .*\n", done.stderr
    )
    assert [(path.name, path.read_bytes()) for path in folder.glob("*.so")] == [("cuda_ext-0.so", b"the library")]
    assert (folder / "library.json").read_text(encoding="utf-8") == '{"file": "cuda_ext-0.so"}'


def test_an_output_that_is_a_file_is_named_before_anything_is_compiled(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(KernelError, match=f"^{file} is no folder "):
        wheel.wheel(file, None)
    # There is no compiler there.
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["wheel", "--output", str(file)])
    with pytest.raises(KernelError, match=f"^{file} is no folder "):
        wheel.main()


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_every_operation_s_example_runs_in_an_environment_with_torch_alone(device, built, tmp_path):
    # A wheel's own library, which lacks what tests call, takes minutes to compile: the checkout's stands for it.
    file = built if device == "cpu" else wheel.wheel(tmp_path, build.BUILT)
    site = tmp_path / "site"
    site.mkdir()
    for name in requirements("torch"):
        for part in importlib.metadata.files(name) or []:
            top = part.parts[0]
            if top != ".." and not (site / top).exists():
                (site / top).symlink_to(part.locate().parents[len(part.parts) - 1] / top)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, file],
        check=True,
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # -S: the packages of this environment are not seen.
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", PROGRAM, device],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(site)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    tried, kernels = done.stdout.splitlines()
    for operation in EXAMPLES:
        assert re.search(rf"'reread_kernels.{operation}': [1-9]", tried), operation
    expected = "reference (the tensors are on the cpu" if device == "cpu" else "extension"
    assert kernels.startswith(expected)
