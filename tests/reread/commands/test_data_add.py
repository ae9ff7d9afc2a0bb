"""`reread data add`: what is refused, and two commands at once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reread.preprocessing.manifest import open_data_set
from reread.storage.source import ROOT

WORDS = {"sport": "ball goal match team", "tech": "chip code data network"}


@pytest.fixture
def here(reread, tmp_path, monkeypatch):
    """The command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return reread


def write_table(name: str, count: int) -> str:
    labels = list(WORDS)
    rows = [f"{WORDS[labels[row % 2]]} number {row} of {name},{labels[row % 2]}" for row in range(count)]
    Path(name).write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    return name


def test_a_size_of_texts_is_refused(here):
    assert "--size" in here("data", "add", write_table("mine.csv", 60), "--size", "32", code=2)
    assert not Path("data").exists() and not Path("data.manifest.json").exists()


def test_a_dry_run_prints_the_columns_and_adds_nothing(here):
    said = here("data", "add", write_table("mine.csv", 60), "--dry-run")
    assert "text   text" in said and "label  label" in said
    assert json.loads(here("data", "add", "mine.csv", "--dry-run", "--json"))["labels"] == ["label"]
    assert not Path("data").exists() and not Path("data.manifest.json").exists()


def test_two_at_once_leave_the_files_of_one(here, monkeypatch):
    """The first, of many rows, is still at work when the second begins."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")
    large, small = write_table("large.csv", 60_000), write_table("small.csv", 60)
    command = [sys.executable, "-m", "reread", "data", "add", "--name", "mine", large]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        assert "text" in first.stdout.readline()
        assert "'mine'" in here("data", "add", "--name", "mine", small, code=2)
        _, said = first.communicate()
    assert first.returncode == 0, said
    assert open_data_set("mine").entry.rows == 60_000
    assert "60000 rows" in Path("data/mine/card.md").read_text(encoding="utf-8")
    # Another name is free, and so is this one afterwards.
    here("data", "add", "--name", "mine", small)
    assert open_data_set("mine").entry.rows == 60
