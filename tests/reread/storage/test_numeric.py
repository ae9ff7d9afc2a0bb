"""The source in a key is the one that the process imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.numeric import numeric_digest
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
    """What a process prints that runs while reread/goals/classification.py is edited: a digest before it, and two after
    it."""
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
