"""The ledger of test reads."""

from datetime import UTC, datetime

import pytest

from evaluation.ledger import FIRST, LEDGER, earlier_reads, plan_parts, read_ledger, reads_of, record_read
from storage.errors import InputError
from storage.files import read_json

WHEN = datetime(2026, 11, 21, 16, 5, 8, tzinfo=UTC)


@pytest.fixture
def ledger(tmp_path):
    return tmp_path / "results" / "test-reads.jsonl"


def test_each_plan_is_recorded_once(ledger):
    assert read_ledger(ledger) == []
    first, plan = record_read("imdb", ["imdb"], {"seeds": [1, 2], "han": {"rate": 1}}, ledger, WHEN)
    assert (first[0].date, first[0].changed, first[0].plan) == ("2026-11-21T16:05:08Z", FIRST, plan)
    text = ledger.read_text()
    # The order of names and the time are no part of a plan.
    assert record_read("imdb", ["imdb"], {"han": {"rate": 1}, "seeds": [1, 2]}, ledger) == (first, plan)
    assert ledger.read_text() == text
    record_read("imdb", ["imdb"], {"seeds": [1, 2], "han": {"rate": 2}, "gru": {}}, ledger)
    entries, _ = record_read("news", ["newsgroups20"], {"seeds": [1]}, ledger)
    assert [entry.changed for entry in entries] == [FIRST, "gru, han", FIRST]
    assert read_ledger(ledger) == entries and ledger.read_text().startswith(text)
    # The first plan again: nothing is added.
    assert record_read("imdb", ["imdb"], {"seeds": [1, 2], "han": {"rate": 1}}, ledger) == (entries, plan)


def test_earlier_reads_are_those_of_other_settings(ledger):
    plans = [record_read("imdb", ["imdb", "digits"], {"seeds": [seed]}, ledger)[1] for seed in (1, 2)]
    entries, _ = record_read("other", ["imdb"], {"seeds": [1]}, ledger)
    assert [earlier_reads(entries, "imdb", plan, "imdb") for plan in (*plans, "new")] == [0, 1, 2]
    assert earlier_reads(entries, "imdb", "new", "mnist") == 0
    assert len(reads_of(entries, ["imdb"])) == 3 and len(reads_of(entries, ["digits"])) == 2


EXPERIMENT = {
    "variants": {"han": {"model": "han", "data": "imdb", "network": {}, "training": {"learning_rate": 0.01}}},
    "preprocessing": {"imdb": {"min_count": 5}},
    "seeds": (1, 2),
    "comparisons": [],
    "equivalence_margin": 0.01,
    "alpha": 0.05,
    "title": "any",
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seeds": (1, 2, 3)}, "seeds"),
        ({"preprocessing": {"imdb": {"min_count": 6}}}, "preprocessing imdb"),
        ({"variants": {"han": {"model": "han", "data": "imdb", "network": {}, "training": {}}}}, "variant han"),
        ({"equivalence_margin": 0.02}, "margin and alpha"),
        ({"title": "another"}, None),
    ],
)
def test_what_changed_is_named(ledger, change, named):
    record_read("imdb", ["imdb"], plan_parts(EXPERIMENT, {"imdb": "v1"}), ledger)
    entries, _ = record_read("imdb", ["imdb"], plan_parts({**EXPERIMENT, **change}, {"imdb": "v1"}), ledger)
    assert [entry.changed for entry in entries[1:]] == ([named] if named else [])
    entries, _ = record_read("imdb", ["imdb"], plan_parts({**EXPERIMENT, **change}, {"imdb": "v2"}), ledger)
    assert entries[-1].changed == "data imdb"


def test_a_broken_line_is_named(ledger):
    record_read("imdb", ["imdb"], {}, ledger)
    with open(ledger, "a") as file:
        file.write("{}\n")
    with pytest.raises(InputError, match=r"test-reads\.jsonl, line 2"):
        read_ledger(ledger)


def test_the_committed_ledger_has_the_reads_of_imdb():
    reads = [entry for entry in read_ledger(LEDGER) if entry.experiment == "imdb"]
    assert len(reads) >= 3 and reads[0].changed == FIRST
    assert [entry.date for entry in reads] == sorted(entry.date for entry in reads)
    assert read_json(LEDGER.parent / "imdb" / "metrics.json")["evaluated_on"] == "test"
