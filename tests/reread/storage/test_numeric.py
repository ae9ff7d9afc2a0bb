"""The source in a key is the one that the process imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.numeric import CUDA_TELLING, numeric_digest, numeric_source
from tests.rooms import copy_rooms

# A process that imports the code, waits until a file has changed, and asks for a digest.
PROGRAM = """
import sys
from reread.storage.errors import InputError
from reread.storage.numeric import numeric_digest
from reread.storage.source import source_digests

print(numeric_digest(["reread.goals.classification"]), flush=True)
sys.stdin.readline()
for digest in (numeric_digest, source_digests):
    try:
        print(digest(["reread.goals.classification"]))
    except InputError as error:
        print(f"refused: {error}")
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    return copy_rooms(tmp_path, "reread/goals", "reread/kinds", "reread/storage", "cuda_ext")


def after(checkout: Path, old: str, new: str) -> list[str]:
    """The output of a process while reread/goals/classification.py is edited: a digest before that, and two after."""
    path = checkout / "reread/goals/classification.py"
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        cwd=checkout,
        env={"PYTHONPATH": str(checkout), "PATH": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        first = process.stdout.readline()
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        rest, _ = process.communicate("\n")
    return [first.strip(), *rest.splitlines()]


def test_code_that_changed_since_it_was_imported_is_refused(checkout):
    _, numeric, whole = after(checkout, " / ", " * ")
    for line in (numeric, whole):
        assert line.startswith("refused: reread/goals/classification.py ")


def test_a_comment_that_changed_meanwhile_is_no_other_code(checkout):
    before, numeric, whole = after(checkout, '"""', '"""Another word. ')
    assert numeric == before and whole.startswith("refused: reread/goals/classification.py ")


def test_moving_a_module_into_the_package_changes_no_digest(tmp_path):
    layer = "RATE = 2\ndef scale(x):\n    return RATE * x\n"
    network = "from {0}layers import scale\nREADER = '{0}readers.text'\ndef network(x):\n    return scale(x)\n"
    for name, package in (("top", ""), ("moved", "reread/"), ("edited", "reread/")):
        folder = tmp_path / name / package
        folder.mkdir(parents=True)
        (folder / "layers.py").write_text(layer.replace("2", "3") if name == "edited" else layer)
        (folder.parent if package else folder).joinpath("net.py").write_text(network.format(package.replace("/", ".")))
    top, moved, edited = (numeric_digest(["net"], tmp_path / name) for name in ("top", "moved", "edited"))
    assert top == moved != edited


# A kernel, with a place before a statement of its device code and one of its host code.
CUDA = """#include "../common/launch.cuh"
{include}
__global__ void run(const int* x, int count) {{
  const int i = threadIdx.x;
  {device}
  if (x[i] < 0) __trap();
}}

void launch(int64_t count) {{
  {host}
  run<<<1, 32>>>(nullptr, count);
}}
"""
INCLUDE = '#include "../common/refuse.cuh"'


def kernel_digest(folder: Path, include: str = "", device: str = "", host: str = "") -> str:
    """The digest of a kernel with these lines, in a project of its own."""
    (folder / "cuda_ext/twice").mkdir(parents=True)
    (folder / "cuda_ext/common").mkdir()
    (folder / "cuda_ext/build.py").write_text("FLAGS = ()\n")
    (folder / "cuda_ext/common/launch.cuh").write_text("#pragma once\n")
    (folder / "cuda_ext/twice/__init__.py").write_text("def twice(x):\n    return 2 * x\n")
    (folder / "cuda_ext/twice/twice.cu").write_text(CUDA.format(include=include, device=device, host=host))
    return numeric_source(["cuda_ext.twice"], folder).kernels["twice"]


@pytest.mark.parametrize(
    "lines",
    [
        {"include": INCLUDE},
        {"device": 'CUDA_EXT_TELL_IF(x[i] < 0, "twice: %lld of %lld", x[i], i);'},
        {"device": 'CUDA_EXT_TELL_IF(x[i] < 0, "a");  // why\n  CUDA_EXT_TELL_IF(x[i] == 1, "b");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(f(count, {1, 2}[0]) <= (3 >> 1), "twice: ", g({count}), " of them");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count != 0, "a \\"quoted\\"; ) and ((", "[;{", ");");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS_BESIDE(\n    x, /* ) */ y, Int,\n    "twice: "  // (\n    "y")\n    ;'},
        {"include": INCLUDE, "device": 'CUDA_EXT_TELL_IF(i, "a");', "host": 'CUDA_EXT_REFUSE_UNLESS(count, "b");'},
    ],
)
def test_a_cuda_statement_that_only_tells_or_refuses_is_in_no_digest(tmp_path, lines):
    assert kernel_digest(tmp_path / "with", **lines) == kernel_digest(tmp_path / "without")


@pytest.mark.parametrize(
    "lines",
    [
        {"include": '#include "../common/launch.cuh"'},
        {"include": "#define CUDA_EXT_TELL_IF(condition, ...) x[0] = 1"},
        {"device": "__syncwarp();"},
        {"device": 'OTHER_CUDA_EXT_TELL_IF(x[i] < 0, "a");'},
        {"device": 'CUDA_EXT_TELL_IF_NOT(x[i] < 0, "a");'},
        # The statement behind it would take its place.
        {"device": 'if (i == 0) CUDA_EXT_TELL_IF(x[i] < 0, "a");'},
        {"device": 'if (i == 0) {} else CUDA_EXT_TELL_IF(x[i] < 0, "a");'},
        # More than the call.
        {"device": 'CUDA_EXT_TELL_IF(x[i] < 0, "a"), i + 1;'},
        {"device": 'CUDA_EXT_TELL_IF(x[i] < 0, "a")'},
        {"device": 'CUDA_EXT_TELL_IF(x[i] < 0, "a"); __syncwarp();'},
        # More than an expression.
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count++ < 3, "a");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS((count = 3), "a");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count += 3, "a");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count >>= 1, "a");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS([&] { return f(count); }(), "a");'},
        # What is not read as C++ is.
        {"host": "CUDA_EXT_REFUSE_UNLESS(count != ')', \"a\");"},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count, R"(a");'},
        {"host": 'CUDA_EXT_REFUSE_UNLESS(count], "a");'},
        {"host": 'f("; CUDA_EXT_REFUSE_UNLESS(count);");'},
    ],
)
def test_every_other_change_of_cuda_source_is_in_its_digest(tmp_path, lines):
    assert kernel_digest(tmp_path / "with", **lines) != kernel_digest(tmp_path / "without")


def test_each_use_in_the_kernels_is_a_statement_that_is_left_out(tmp_path):
    checkout, header = copy_rooms(tmp_path, "cuda_ext", "reread/storage"), "cuda_ext/common/refuse.cuh"
    for path in checkout.glob("cuda_ext/*/cases.py"):
        path.unlink()  # it may import peers that are not installed
    modules = [f"cuda_ext.{path.parent.name}" for path in sorted(checkout.glob("cuda_ext/*/__init__.py"))]
    before, used = numeric_source(modules, checkout).kernels, set()
    assert re.findall(r"^ *# *define +(\w+)", (checkout / header).read_text(), re.MULTILINE) == list(CUDA_TELLING)
    (checkout / header).unlink()
    for path in checkout.glob("cuda_ext/*/*.cu*"):
        text = path.read_text()
        used.update(name for name in CUDA_TELLING if f"{name}(" in text)
        path.write_text(re.sub(rf"\b({'|'.join(CUDA_TELLING)})\(", r"\1(other, ", text))
    assert used == set(CUDA_TELLING)
    assert numeric_source(modules, checkout).kernels == before
