"""Parsed source is kept between processes, and taken for that source alone."""

import functools
import json
import subprocess
import sys

import pytest

from reread.storage import normalised
from reread.storage.source import ROOT

FILE = ROOT / "models/han.py"
SOURCE = FILE.read_bytes()
EDITED = SOURCE + b"\nWIDTH = 3\n"


@pytest.fixture
def process(tmp_path, monkeypatch):
    """A function that begins a process anew, as far as this module has a memory, with a folder of its own."""
    monkeypatch.setattr(normalised, "KEPT", tmp_path / "kept")

    def begin():
        # The process of pytest is not to write its own at its end.
        monkeypatch.setattr(normalised, "_keep_at_exit", lambda: None)
        for name in ("_place", "_kept"):
            monkeypatch.setattr(normalised, name, functools.cache(getattr(normalised, name).__wrapped__))
        monkeypatch.setattr(normalised, "read", functools.cache(normalised.read.__wrapped__))

    begin()
    return begin


def refuse(*_):
    raise AssertionError("the source is parsed again")


def test_a_later_process_reads_what_an_earlier_one_has_parsed(process, monkeypatch):
    first = normalised.read(FILE, ROOT, SOURCE)
    normalised.keep()
    process()
    monkeypatch.setattr(normalised, "_normalised", refuse)
    assert normalised.read(FILE, ROOT, SOURCE) == first


def test_another_source_of_the_file_is_parsed(process):
    first = normalised.read(FILE, ROOT, SOURCE)
    normalised.keep()
    process()
    assert normalised.read(FILE, ROOT, EDITED).definitions == {
        **first.definitions,
        "WIDTH": normalised.read(FILE, ROOT, b"WIDTH = 3").definitions["WIDTH"],
    }


@pytest.mark.parametrize("damage", [b"", b"{", b"\xff"])
def test_a_damaged_file_is_made_again(process, damage):
    first = normalised.read(FILE, ROOT, SOURCE)
    normalised.keep()
    normalised._place().write_bytes(damage)
    process()
    assert normalised.read(FILE, ROOT, SOURCE) == first
    normalised.keep()
    assert list(json.loads(normalised._place().read_text())) == ["models/han.py"]


def test_where_no_file_can_be_written_the_source_is_parsed_each_time(process, tmp_path):
    (tmp_path / "kept").write_text("no folder")
    first = normalised.read(FILE, ROOT, SOURCE)
    normalised.keep()
    process()
    assert normalised.read(FILE, ROOT, SOURCE) == first


def test_without_a_folder_of_caches_nothing_is_written(process, tmp_path, monkeypatch):
    monkeypatch.setattr(normalised, "KEPT", tmp_path / "package" / ".cache" / "normalised")
    normalised.read(FILE, ROOT, SOURCE)
    normalised.keep()
    assert not list(tmp_path.iterdir())


def test_other_code_keeps_its_results_in_another_file(process, tmp_path, monkeypatch):
    before = normalised._place()
    (tmp_path / "normalised.py").write_bytes(ROOT.joinpath("reread/storage/normalised.py").read_bytes() + b"\n# More.")
    monkeypatch.setattr(normalised, "__file__", str(tmp_path / "normalised.py"))
    process()
    assert normalised._place() != before


def test_a_process_that_parsed_something_keeps_it_when_it_ends(tmp_path):
    kept = tmp_path / "kept"
    program = """
import sys
from pathlib import Path
from reread.storage import normalised
normalised.KEPT = Path(sys.argv[1])
file = normalised.ROOT / "models/han.py"
for _ in range(2):
    normalised.read(file, normalised.ROOT, file.read_bytes())
    assert not normalised.KEPT.exists()
"""
    subprocess.run([sys.executable, "-c", program, str(kept)], cwd=ROOT, check=True)
    (file,) = kept.iterdir()
    assert list(json.loads(file.read_text())) == ["models/han.py"]
