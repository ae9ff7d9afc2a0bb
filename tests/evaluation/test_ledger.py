"""The ledger of test reads."""

import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from evaluation.ledger import (
    FIRST,
    LEDGER,
    add_reads,
    earlier_reads,
    read_ledger,
    reads_file,
    reads_of,
    record_read,
    record_run_read,
    settings_key,
)
from storage.errors import InputError
from storage.files import read_json, write_json
from storage.locks import file_lock
from storage.run_folder import RunFolder
from tests.damage import damages

WHEN = datetime(2026, 11, 21, 16, 5, 8, tzinfo=UTC)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "results" / "test-reads.jsonl"


def test_each_plan_is_recorded_once(ledger):
    assert read_ledger(ledger) == []
    first = record_read("imdb", "aaaa", ["imdb"], {"seeds": [1, 2], "han": {"rate": 1}}, ledger, WHEN)
    assert (first[0].date, first[0].changed, first[0].plan) == ("2026-11-21T16:05:08Z", FIRST, "aaaa")
    text = ledger.read_text()
    assert record_read("imdb", "aaaa", ["imdb"], {"seeds": [1, 2], "han": {"rate": 1}}, ledger) == first
    assert ledger.read_text() == text
    record_read("imdb", "bbbb", ["imdb"], {"seeds": [1, 2], "han": {"rate": 2}, "gru": {}}, ledger)
    entries = record_read("news", "cccc", ["newsgroups20"], {"seeds": [1]}, ledger)
    assert [entry.changed for entry in entries] == [FIRST, "gru, han", FIRST]
    assert read_ledger(ledger) == entries and ledger.read_text().startswith(text)
    # The first plan again: nothing is added.
    assert record_read("imdb", "aaaa", ["imdb"], {"seeds": [1, 2], "han": {"rate": 1}}, ledger) == entries


def test_earlier_reads_are_those_of_other_settings(ledger):
    for plan in ("aaaa", "bbbb"):
        record_read("imdb", plan, ["imdb", "digits"], {"plan": plan}, ledger)
    entries = record_read("other", "cccc", ["imdb"], {}, ledger)
    assert entries[0].data == ["digits", "imdb"]
    # Another experiment had the same plan before: that ends nothing.
    assert earlier_reads([replace(entries[1], experiment="copy"), *entries], "imdb", "bbbb", "imdb") == 1
    assert [earlier_reads(entries, "imdb", plan, "imdb") for plan in ("aaaa", "bbbb", "new")] == [0, 1, 2]
    assert earlier_reads(entries, "imdb", "new", "mnist") == 0
    assert len(reads_of(entries, ["imdb"])) == 3 and len(reads_of(entries, ["digits"])) == 2


def test_reads_for_one_run_come_to_the_ledger_once_and_count_where_the_settings_differ(ledger, tmp_path):
    ledger.parent.mkdir()
    for seed, rate in ((0, 0.1), (1, 0.1), (0, 0.2)):
        job = {"experiment": "imdb", "variant": "han", "model": "han", "data": "imdb", "seed": seed, "network": {}}
        job["training"] = {"learning_rate": rate}
        write_json(tmp_path / f"runs/{rate}-{seed}/job.json", job)
        run = RunFolder(tmp_path / f"runs/{rate}-{seed}")
        record_run_read(run, tmp_path / "elsewhere" / ledger.name, WHEN)
        add_reads(read_ledger(reads_file(run.directory)), ledger)
        add_reads(read_ledger(reads_file(run.directory)), ledger)
    assert [entry.run for entry in read_ledger(ledger)] == ["0.1-0", "0.2-0"]
    entries = record_read("imdb", "aaaa", ["imdb"], {"han": 1}, ledger)
    assert entries[-1].changed == FIRST and '"run"' not in ledger.read_text().splitlines()[-1]
    assert earlier_reads(entries, "imdb", "aaaa", "imdb", {settings_key(job)}) == 1
    assert earlier_reads(entries, "imdb", "aaaa", "imdb") == 2
    assert earlier_reads(entries, "other", "aaaa", "imdb") == 0


def test_where_no_part_tells_what_changed_it_is_not_known(ledger):
    """The experiment's first entries have no parts; equal parts cannot be what changed."""
    for plan, parts in (("aaaa", {}), ("bbbb", {"seeds": 1}), ("cccc", {"seeds": 1}), ("dddd", {})):
        entries = record_read("imdb", plan, ["imdb"], parts, ledger)
    assert [entry.changed for entry in entries] == [FIRST, *["not known"] * 3]


def test_a_read_waits_for_another_process_that_writes(ledger):
    other = threading.Thread(target=record_read, args=("imdb", "aaaa", ["imdb"], {}, ledger))
    with file_lock(ledger.parent.parent / ".locks" / ledger.name):
        other.start()
        other.join(0.3)
        assert other.is_alive() and not ledger.exists()
    other.join(30)
    assert len(read_ledger(ledger)) == 1


def test_a_broken_line_is_named(ledger):
    record_read("imdb", "aaaa", ["imdb"], {}, ledger)
    with ledger.open("a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"test-reads\.jsonl, line 2"):
        read_ledger(ledger)


def test_the_committed_ledger_has_the_reads_of_imdb():
    reads = [entry for entry in read_ledger(LEDGER) if entry.experiment == "imdb"]
    assert len(reads) >= 3 and reads[0].changed == FIRST
    assert [entry.date for entry in reads] == sorted(entry.date for entry in reads)
    assert read_json(LEDGER.parent / "imdb" / "metrics.json")["evaluated_on"] == "test"


def test_a_damaged_ledger_is_refused_and_stays_as_it_is(ledger):
    for plan in ("aaaa", "bbbb"):
        record_read("imdb", plan, ["imdb", "größe"], {"plan": plan, "seeds": [1]}, ledger)
    refused = []
    for _ in damages(ledger):
        damaged, line = ledger.read_bytes(), ""
        try:
            entries = record_read("imdb", "bbbb", ["imdb"], {"plan": "bbbb"}, ledger)
            reads_of(entries, ["imdb"])
            earlier_reads(entries, "imdb", "bbbb", "imdb")
        except InputError as error:
            line = str(error)
        if line:
            refused.append(line)
            assert ledger.read_bytes() == damaged
    assert len(refused) > 10 and "\n" not in "".join(refused)


@pytest.mark.parametrize(
    "line", ["[]", '{"date": 1}', '{"date": "", "experiment": "", "plan": "", "data": 5, "changed": ""}', "[" * 100_000]
)
def test_a_line_that_is_no_entry_is_named(ledger, line):
    record_read("imdb", "aaaa", ["imdb"], {}, ledger)
    ledger.write_text(f"{ledger.read_text()}{line}\n")
    with pytest.raises(InputError, match="line 2"):
        read_ledger(ledger)
