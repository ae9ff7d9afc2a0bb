"""reread ledger: entries are listed, those of another machine are added, and a changed one is named."""

import json

import pytest

from reread.storage.ledger import open_test_split, read_ledger
from tests.conftest import run_reread


def ledger(folder, *arguments, code=0):
    done = run_reread("ledger", *arguments, folder=folder, COLUMNS="120")
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def project(tmp_path):
    for name, plan, data in (("imdb", "aaaa", "imdb"), ("speed record 94", "bbbb", "cifar10")):
        with open_test_split(name, plan, {data: "12345678abcd"}, {}, path=tmp_path / "results/test-reads.jsonl"):
            pass
    return tmp_path


def test_entries_are_listed_all_or_those_of_a_data_set(project):
    lines = ledger(project).splitlines()
    assert len(lines) == 3 and "imdb 12345678" in lines[1] and "speed record 94" in lines[2]
    assert "speed record" not in ledger(project, "--data", "imdb")
    assert [entry["plan"] for entry in json.loads(ledger(project, "--json"))] == ["aaaa", "bbbb"]


def test_entries_of_another_machine_are_added_once(project):
    there = project / "figures.json.test-reads.jsonl"
    with open_test_split("speed record 96", "cccc", {"cifar10": "12345678abcd"}, {}, path=there):
        pass
    added = ledger(project, "--add", there.name)
    assert "1 new entries" in added and "speed record 96" in added and "imdb" not in added
    assert "0 new entries" in ledger(project, "--add", there.name)
    assert [entry.reader for entry in read_ledger(project / "results/test-reads.jsonl")][-1] == "speed record 96"
    assert "no such file" in ledger(project, "--add", "missing.jsonl", code=2)


def test_a_changed_entry_is_one_line_and_exit_code_2(project):
    path = project / "results/test-reads.jsonl"
    path.write_text(path.read_text().replace("imdb", "digits", 1))
    (line,) = ledger(project, code=2).splitlines()
    assert "test-reads.jsonl, line 2 does not follow" in line
