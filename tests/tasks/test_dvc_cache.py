"""Data that DVC brings back altered, at equal size and time, is refused; doing what the line says mends it."""

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import pytest
from dvc.cli import main as dvc

from reread.storage.errors import InputError
from reread.storage.files import sha256_file
from reread.storage.source import ROOT
from tasks.ingest import ingest

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
LABELS = Path("data/digits/labels.npy")


def flip(folder: Path, md5: str) -> None:
    """Change a bit of the object with this md5 in a cache or a remote, and neither its size nor its time."""
    (path,) = folder.rglob(f"{md5[:2]}/{md5[2:]}")
    content, about = bytearray(path.read_bytes()), path.stat()
    content[-4] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    path.chmod(about.st_mode & 0o777)
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))


def refusal() -> str:
    with pytest.raises(InputError) as error:
        ingest.fn("digits")
    expected = json.loads(Path("data.manifest.json").read_text())["datasets"]["digits"]["files"]["labels.npy"]["sha256"]
    said = str(error.value)
    assert "\n" not in said and str(LABELS) in said and expected[:12] in said and sha256_file(LABELS)[:12] in said
    return said


def mend(said: str) -> None:
    """Do what the line says; ``make data`` is its last part, which asks the remote and then builds what is missing."""
    for command in re.findall("`([^`]*)`", said):
        program, *arguments = command.split()
        if program == "rm":
            Path(arguments[-1]).unlink()
        else:
            assert program == "dvc" and dvc(arguments) == 0
    assert "remove data/digits and run 'make data'" in said
    shutil.rmtree("data/digits")
    dvc(["pull", "--quiet", "data.dvc"])
    ingest.fn("digits")
    assert dvc(["commit", "--quiet", "--force", "data.dvc"]) == 0


def test_an_altered_object_of_dvc_is_refused_and_mended(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("params.yaml", "data.manifest.json"):
        shutil.copy2(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "experiments", "experiments")
    shutil.copytree(ROOT / "data/digits", "data/digits")
    kept = LABELS.read_bytes()
    md5 = hashlib.md5(kept).hexdigest()
    assert dvc(["init", "--quiet", "--no-scm"]) == 0
    assert dvc(["remote", "add", "--quiet", "--default", "store", str(tmp_path / "store")]) == 0
    assert dvc(["add", "--quiet", "data"]) == dvc(["push", "--quiet"]) == 0

    # Of the remote: DVC hands it out until it is told to verify, then builds it here.
    flip(tmp_path / "store", md5)
    shutil.rmtree("data")
    shutil.rmtree(".dvc/cache")
    assert dvc(["pull", "--quiet"]) == 0
    said = refusal()
    assert "dvc remote modify store verify true" in said
    mend(said)
    assert LABELS.read_bytes() == kept

    # Of the cache.
    flip(Path(".dvc/cache"), md5)
    shutil.rmtree("data")
    assert dvc(["checkout", "--quiet"]) == 0
    said = refusal()
    assert "verify" not in said
    mend(said)
    shutil.rmtree("data")
    assert dvc(["checkout", "--quiet"]) == 0
    assert LABELS.read_bytes() == kept
