"""`reread data list`: the data sets of the manifest, and whether their files are present."""

import json
import re
import shutil
from pathlib import Path

import pytest

from reread.preprocessing.manifest import Manifest
from reread.storage.prepared import SPLITS
from reread.storage.source import ROOT
from tests.reread.commands.test_data_add import write_table


@pytest.fixture
def here(reread, tmp_path, monkeypatch):
    """The command in a folder with the project's manifest and without its data."""
    monkeypatch.chdir(tmp_path)
    shutil.copy2(ROOT / "data.manifest.json", tmp_path)
    return reread


def test_each_data_set_has_a_row_and_whether_its_files_are_present(here):
    here("data", "add", write_table("mine.csv", 60))
    here("data", "add", "mine.csv", "--name", "cut")
    with open("data/cut/documents.jsonl", "a", encoding="utf-8") as file:
        file.write("\n")
    listed = json.loads(here("data", "list", "--json"))
    entries = Manifest.load().datasets
    assert [data_set["name"] for data_set in listed] == sorted(entries)
    files = {data_set["name"]: (data_set["made_of"], data_set["files"]) for data_set in listed}
    assert files == dict.fromkeys(entries, ("a source", "missing")) | {
        "mine": ("own data", "present"),
        "cut": ("own data", "changed"),
    }
    for data_set in listed:
        about = entries[data_set["name"]]
        assert (data_set["kind"], data_set["task"], data_set["version"]) == (about.kind, about.task, about.version)
        assert (data_set["splits"], tuple(data_set["classes"])) == (about.splits, about.classes)
    lines = [re.split(r" {2,}", line.strip()) for line in here("data", "list").splitlines()]
    entry = entries["mine"]
    row = ["mine", "text", "single-label", *(str(entry.splits[split]) for split in SPLITS), "2", entry.version[:12]]
    assert [*row, "own data", "present"] in lines and len(lines) == 1 + len(entries)


def test_a_number_is_no_class(here):
    Path("mine.csv").write_text("text,price\n" + "".join(f"Text number {row},{row % 7}\n" for row in range(60)))
    here("data", "add", "mine.csv", "--label", "price", "--task", "regression")
    (line,) = (line for line in here("data", "list").splitlines() if line.startswith("mine "))
    assert re.split(r" {2,}", line.strip())[2:7] == ["regression", "42", "9", "9", "-"]


def test_no_data_set_and_a_broken_manifest(here):
    Path("data.manifest.json").unlink()
    assert "run this from the project's folder" in here("data", "list", code=2)
    Path("params.yaml").touch()
    assert "no data sets" in here("data", "list") and json.loads(here("data", "list", "--json")) == []
    Path("data.manifest.json").write_text("{}")
    assert "data.manifest.json" in here("data", "list", code=2)
