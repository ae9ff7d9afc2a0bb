"""The source in a key is the one that the process imported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from reread.storage.source import ROOT

# A process that imports the code, waits until a file has changed, and asks for a digest.
PROGRAM = """
import sys
from reread.storage.errors import InputError
from reread.storage.numeric import numeric_digest
from reread.storage.source import source_digests

print(numeric_digest(["reread.evaluation.metrics"]), flush=True)
sys.stdin.readline()
for digest in (numeric_digest, source_digests):
    try:
        print(digest(["reread.evaluation.metrics"]))
    except InputError as error:
        print(f"refused: {error}")
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    for name in ("evaluation", "kinds", "storage", "cuda_ext"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "_build"))
    return tmp_path


def after(checkout: Path, old: str, new: str) -> list[str]:
    """What a process prints that runs while reread/evaluation/metrics.py is edited: a digest before it, and two after
    it."""
    path = checkout / "reread/evaluation/metrics.py"
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
        assert line.startswith("refused: reread/evaluation/metrics.py ")


def test_a_comment_that_changed_meanwhile_is_no_other_code(checkout):
    before, numeric, whole = after(checkout, '"""', '"""Another word. ')
    assert numeric == before and whole.startswith("refused: reread/evaluation/metrics.py ")
