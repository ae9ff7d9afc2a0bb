"""The ledger of test reads: no row of a test split without an entry, and no entry changed unnoticed."""

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from reread.storage.errors import InputError
from reread.storage.files import sha256_bytes, sha256_file, write_json
from reread.storage.ledger import (
    FIRST,
    LEDGER,
    add_reads,
    open_run_test_split,
    open_test_split,
    read_ledger,
    reads_file,
)
from reread.storage.locks import file_lock
from reread.storage.prepared import open_prepared
from reread.storage.run_folder import RunFolder
from tests.damage import damages

ROOT = Path(__file__).resolve().parents[3]
WHEN = datetime(2026, 11, 21, 16, 5, 8, tzinfo=UTC)
IMDB = {"imdb": "1234abcd"}


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "results" / "test-reads.jsonl"


@pytest.fixture
def prepared(tmp_path):
    """Eight rows of data set imdb, two of them for testing."""
    folder = tmp_path / "prepared" / "key"
    folder.mkdir(parents=True)
    labels = np.arange(8, dtype=np.int32) % 2
    np.save(folder / "labels.npy", labels)
    listed = {"file": "labels.npy", "shape": [8], "dtype": "int32", "sha256": sha256_file(folder / "labels.npy")}
    splits = {"train": [0, 4], "validation": [4, 6], "test": [6, 8]}
    about = {
        "name": "imdb",
        "data_version": IMDB["imdb"],
        "kind": "text",
        "task": "single-label",
        "classes": ["a", "b"],
    }
    write_json(folder / "prepared.json", {**about, "splits": splits, "arrays": {"labels": listed}})
    return folder


def read(reader, plan, parts, path, data=IMDB, **about):
    """Read once, and return the ledger of that time."""
    with open_test_split(reader, plan, data, parts, path=path, **about) as entries:
        return entries


def test_rows_of_the_test_split_are_given_where_their_read_has_an_entry_and_nowhere_else(prepared, ledger):
    rows = open_prepared(prepared)
    assert len(rows.rows("train")) == 4 and len(rows.rows("validation")) == 2
    with pytest.raises(InputError, match="imdb is read without an entry"):
        rows.rows("test")
    with open_test_split("imdb", "aaaa", IMDB, {}, path=ledger):
        assert [entry.data for entry in read_ledger(ledger)] == [IMDB]
        assert rows.rows("test").tolist() == [6, 7]
    with pytest.raises(InputError):
        rows.rows("test")
    # Another version of the data, and another data set.
    for data in ({"imdb": "other"}, {"digits": IMDB["imdb"]}):
        with open_test_split("imdb", "bbbb", data, {}, path=ledger), pytest.raises(InputError):
            rows.rows("test")


def test_a_read_within_another_of_the_same_data_closes_its_own_alone(prepared, ledger):
    rows = open_prepared(prepared)
    with open_test_split("imdb", "aaaa", IMDB, {}, path=ledger):
        read("study deletion", "bbbb", {}, ledger)
        assert len(rows.rows("test")) == 2


def test_where_the_entry_cannot_be_written_no_row_is_given(prepared, ledger):
    rows = open_prepared(prepared)
    ledger.mkdir(parents=True)
    with pytest.raises(InputError), open_test_split("imdb", "aaaa", IMDB, {}, path=ledger):
        pytest.fail("the block was entered")
    ledger.rmdir()
    ledger.write_text("no entry\n")
    with pytest.raises(InputError, match="line 1"), open_test_split("imdb", "bbbb", IMDB, {}, path=ledger):
        pytest.fail("the block was entered")
    with pytest.raises(InputError):
        rows.rows("test")


def test_a_reader_that_is_killed_before_it_read_a_row_has_left_its_entry(prepared, ledger, tmp_path):
    code = f"""
import os, signal
from pathlib import Path
from reread.storage.ledger import open_test_split
from reread.storage.prepared import Prepared, open_prepared
Prepared.rows = lambda self, split: os.kill(os.getpid(), signal.SIGKILL)
with open_test_split("imdb", "aaaa", {IMDB!r}, {{}}, path=Path({str(ledger)!r})):
    open_prepared(Path({str(prepared)!r})).rows("test")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    (entry,) = read_ledger(ledger)
    assert (entry.reader, entry.plan) == ("imdb", "aaaa")
    # The same read again finds it, and adds none.
    assert read("imdb", "aaaa", {}, ledger) == [entry]


def test_each_plan_is_recorded_once(ledger):
    assert read_ledger(ledger) == []
    first = read("imdb", "aaaa", {"seeds": [1, 2], "han": {"rate": 1}}, ledger, now=WHEN)
    assert (first[0].date, first[0].changed, first[0].plan) == ("2026-11-21T16:05:08Z", FIRST, "aaaa")
    text = ledger.read_text()
    assert read("imdb", "aaaa", {"seeds": [1, 2], "han": {"rate": 1}}, ledger) == first
    assert ledger.read_text() == text
    read("imdb", "bbbb", {"seeds": [1, 2], "han": {"rate": 2}, "gru": {}}, ledger)
    entries = read("news", "cccc", {"seeds": [1]}, ledger, {"newsgroups20": "1"})
    assert [entry.changed for entry in entries] == [FIRST, "gru, han", FIRST]
    assert read_ledger(ledger) == entries and ledger.read_text().startswith(text)
    # The first plan again: nothing is added. Of another version of the data it is another read.
    assert read("imdb", "aaaa", {"seeds": [1, 2], "han": {"rate": 1}}, ledger) == entries
    assert len(read("imdb", "aaaa", {"seeds": [1, 2], "han": {"rate": 1}}, ledger, {"imdb": "new"})) == 4


def test_an_experiment_by_another_name_does_not_begin_anew(ledger):
    read("imdb", "aaaa", {"variant han": {"rate": 1}, "seeds": [1]}, ledger)
    renamed, other = (
        read("copy", "bbbb", {"variant reader": {"rate": 1}, "seeds": [2]}, ledger)[-1],
        read("other", "cccc", {"variant reader": {"rate": 2}, "seeds": [2]}, ledger)[-1],
    )
    assert "after imdb" in renamed.changed and other.changed == FIRST


def test_reads_for_one_run_come_to_the_ledger_once(ledger, tmp_path):
    ledger.parent.mkdir()
    for seed, rate in ((0, 0.1), (1, 0.1), (0, 0.2)):
        job = {"experiment": "imdb", "variant": "han", "model": "han", "data": "imdb", "seed": seed, "network": {}}
        job["training"] = {"learning_rate": rate}
        write_json(tmp_path / f"runs/{rate}-{seed}/job.json", job)
        run = RunFolder(tmp_path / f"runs/{rate}-{seed}")
        with open_run_test_split(
            run, {"name": "imdb", "data_version": "1234abcd"}, tmp_path / "elsewhere" / ledger.name, WHEN
        ):
            pass
        for _ in range(2):
            add_reads(read_ledger(reads_file(run.directory)), ledger)
    assert [entry.run for entry in read_ledger(ledger)] == ["0.1-0", "0.2-0"]
    assert not (tmp_path / "elsewhere").exists()
    entries = read("imdb", "aaaa", {"han": 1}, ledger)
    assert entries[-1].changed == FIRST and '"run"' not in ledger.read_text().splitlines()[-1]


def test_entries_of_two_machines_are_appended_in_the_order_of_their_arrival(tmp_path, ledger):
    there = tmp_path / "there.jsonl"
    read("imdb", "aaaa", {}, ledger)
    there.write_bytes(ledger.read_bytes())
    read("imdb", "bbbb", {}, ledger)
    read("imdb", "cccc", {"seeds": 1}, there, now=WHEN)
    read("imdb", "dddd", {"seeds": 2}, there)
    for _ in range(2):
        assert [entry.plan for entry in add_reads(read_ledger(there), ledger)] == ["aaaa", "bbbb", "cccc", "dddd"]
    entries = read_ledger(ledger)
    assert entries[2].date == "2026-11-21T16:05:08Z" and entries[3].changed == "seeds"
    # Both appended lines, as git leaves them where two branches are merged by hand: the chain is broken.
    lines = ledger.read_text().splitlines(keepends=True)[:2] + there.read_text().splitlines(keepends=True)[1:]
    ledger.write_text("".join(lines))
    with pytest.raises(InputError, match="line 3 does not follow the line before it.*ledger --add"):
        read_ledger(ledger)


def test_a_line_that_was_changed_removed_or_inserted_is_named(ledger):
    for plan in ("aaaa", "bbbb", "cccc", "dddd"):
        read("imdb", plan, {"plan": plan}, ledger)
    lines = ledger.read_text().splitlines(keepends=True)
    previous = [sha256_bytes(line.rstrip("\n").encode()) for line in lines]
    assert [json.loads(line)["before"] for line in lines] == ["", *previous[:3]]
    forged = [
        ([lines[0].replace("imdb", "news"), *lines[1:]], 2),
        ([lines[0], *lines[2:]], 2),
        (lines[1:], 1),
        ([*lines[:2], lines[1].replace("bbbb", "eeee"), *lines[2:]], 3),
        ([lines[1], lines[0], *lines[2:]], 1),
    ]
    for content, number in forged:
        ledger.write_text("".join(content))
        with pytest.raises(InputError, match=rf"test-reads\.jsonl, line {number} ") as refused:
            read("imdb", "new", {}, ledger)
        assert "\n" not in str(refused.value) and ledger.read_text() == "".join(content)


def test_a_line_that_another_hand_spaced_is_continued_as_it_stands(ledger):
    (entry,) = read("imdb", "aaaa", {}, ledger)
    ledger.write_text(entry.line().replace('": ', '":  '))
    text = ledger.read_text()
    read("imdb", "bbbb", {}, ledger)
    assert ledger.read_text().startswith(text + "\n") and len(read_ledger(ledger)) == 2


def test_where_no_part_tells_what_changed_it_is_not_known(ledger):
    """The experiment's first entries have no parts; equal parts cannot be what changed."""
    for plan, parts in (("aaaa", {}), ("bbbb", {"seeds": 1}), ("cccc", {"seeds": 1}), ("dddd", {})):
        entries = read("imdb", plan, parts, ledger)
    assert [entry.changed for entry in entries] == [FIRST, *["not known"] * 3]


def test_a_read_waits_for_another_process_that_writes(ledger):
    other = threading.Thread(target=read, args=("imdb", "aaaa", {}, ledger))
    with file_lock(ledger.parent.parent / ".locks" / ledger.name):
        other.start()
        other.join(0.3)
        assert other.is_alive() and not ledger.exists()
    other.join(30)
    assert len(read_ledger(ledger)) == 1


def test_the_committed_ledger_is_whole_and_names_the_commits_of_what_was_added():
    entries = read_ledger(ROOT / LEDGER)
    added = {entry.reader: entry.added for entry in entries if entry.added}
    assert {"quantiles-imdb", "quantiles-newsgroups20", "lars", "speed record 94", "speed record 96"} <= set(added)
    for commit in set(added.values()):
        done = subprocess.run(["git", "cat-file", "-t", commit], cwd=ROOT, capture_output=True, text=True)
        assert done.stdout.strip() in ("commit", ""), commit  # "" in a shallow clone
    assert all(version for entry in entries for name, version in entry.data.items() if name != "copying")


def test_a_damaged_ledger_is_refused_and_stays_as_it_is(ledger):
    for plan in ("aaaa", "bbbb"):
        read("imdb", plan, {"plan": plan, "seeds": [1]}, ledger, {"imdb": "1", "größe": "2"})
    refused = []
    for _ in damages(ledger):
        damaged, line = ledger.read_bytes(), ""
        try:
            read("imdb", "bbbb", {"plan": "bbbb"}, ledger, {"imdb": "1", "größe": "2"})
        except InputError as error:
            line = str(error)
        if line:
            refused.append(line)
            assert ledger.read_bytes() == damaged
    # A flipped bit in the first line breaks the chain at the second.
    assert len(refused) > 25 and "\n" not in "".join(refused)


@pytest.mark.parametrize(
    "line", ["[]", '{"date": 1}', '{"date": "", "reader": "", "plan": "", "data": 5, "changed": ""}', "[" * 100_000]
)
def test_a_line_that_is_no_entry_is_named(ledger, line):
    read("imdb", "aaaa", {}, ledger)
    ledger.write_text(f"{ledger.read_text()}{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_ledger(ledger)


# Files that read the places of splits, and why none of them gives a test row.
PLACES = {
    "reread/storage/prepared.py": "Prepared.rows refuses those of test without an entry",
    "reread/batches/subsets.py": "the places of rows that were given",
    "reread/preprocessing/documents.py": "writes them",
    "reread/preprocessing/own_data.py": "counts rows of a data set that it writes",
    "reread/preprocessing/images.py": "writes them",
    "reread/preprocessing/tokenised.py": "writes them",
    "reread/kinds/symbols.py": "writes them",
    "reread/preprocessing/manifest.py": "counts of the manifest",
    "reread/planning/reach.py": "counts rows",
    "reread/evaluation/folds.py": "counts rows of the folds of a repetition",
    "tasks/evaluate.py": "compares the places of two sets of arrays",
    "tasks/preprocess.py": "counts rows",
    "reread/tracking/runs.py": "counts rows",
    "reread/tracking/serving.py": "counts rows",
    "reread/tracking/registry.py": "counts rows of validation",
    "reread/commands/compare.py": "counts rows",
    "reread/commands/data_list.py": "counts rows",
    "reread/preprocessing/prepare.py": "targets of the training split",
    "tasks/estimate.py": "counts rows",
    "reread/evaluation/run.py": "an entry of a key",
    "reread/evaluation/class_activation.py": "the places of boxes, beside Prepared.rows",
    "benchmarks/checkpoint.py": "drawn data",
}
# Files that open raw data, in which rows of all splits are.
RAW = {
    "reread/preprocessing/manifest.py": "load_raw_rows, of rows that Prepared.rows gave",
    "reread/preprocessing/prepare.py": "writes the prepared arrays",
    "reread/preprocessing/ingest.py": "counts classes",
    "reread/commands/data_add.py": "makes the data card",
    "tasks/ingest.py": "makes the data cards",
    "tasks/estimate.py": "times rows of training and validation that Prepared.rows gave",
    "reread/interface.py": "ids of rows that Prepared.rows gave",
    "benchmarks/preprocessing.py": "times preparation",
    "benchmarks/prediction.py": "raw texts of rows that Prepared.rows gave",
    "benchmarks/serving.py": "texts of validation",
}


def test_no_other_code_reads_the_places_of_splits_or_raw_rows():
    """``Prepared.rows`` is the only way to test rows: who finds them by himself, or in raw data, is named above."""
    places, raw = set(), set()
    rooms = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")
    for path in (path for room in rooms for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and node.value == "splits":
                places.add(name)
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Name | ast.Attribute) and getattr(called, "id", getattr(called, "attr", "")) in (
                "open_data_set",
                "open_raw",
            ):
                raw.add(name)
    assert places - set(PLACES) == set() and raw - set(RAW) == set()
    source = ast.parse((ROOT / "reread/storage/prepared.py").read_bytes())
    (rows,) = (node for node in ast.walk(source) if isinstance(node, ast.FunctionDef) and node.name == "rows")
    assert ast.unparse(rows.body[1]) == "refuse_unrecorded(self.description, split)"


def test_the_refusal_is_in_no_key(tmp_path):
    """Runs that were trained before it keep their names; any other line of ``rows`` is in each key."""
    from reread.storage.numeric import numeric_digest

    def digest(text):
        (tmp_path / "prepared.py").write_text(text)
        return numeric_digest(["prepared"], tmp_path)

    with_it = "def rows(about, split):\n    refuse_unrecorded(about, split)\n    return about[split]\n"
    without = with_it.replace("    refuse_unrecorded(about, split)\n", "")
    assert digest(with_it) == digest(without) != digest(with_it.replace("about[split]", "about[split][1:]"))
